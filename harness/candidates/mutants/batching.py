"""Batching, padding, unpadding."""

LEFT_OUT: dict[str, str] = {}
