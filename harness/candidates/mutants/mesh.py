"""Replicas, peers and process groups."""

LEFT_OUT: dict[str, str] = {}
