"""Label shift and loss-mask alignment."""

LEFT_OUT: dict[str, str] = {}
