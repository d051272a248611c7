"""Precision and randomness."""

LEFT_OUT: dict[str, str] = {}
