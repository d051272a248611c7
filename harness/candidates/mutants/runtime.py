"""Hangs, races and state."""

LEFT_OUT: dict[str, str] = {}
