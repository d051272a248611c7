"""Slicing, positions, side inputs of each token."""

LEFT_OUT: dict[str, str] = {}
