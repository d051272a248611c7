"""Gathers, autograd, and the scale of gradients."""

LEFT_OUT: dict[str, str] = {}
