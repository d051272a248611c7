"""The attention kernel and what it is told of rows."""

LEFT_OUT: dict[str, str] = {}
