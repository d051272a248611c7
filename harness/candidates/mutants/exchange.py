"""The all-to-all of attention, and the layout of heads."""

LEFT_OUT: dict[str, str] = {}
