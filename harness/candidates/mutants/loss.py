"""Loss, mask and normalisation."""

LEFT_OUT: dict[str, str] = {}
