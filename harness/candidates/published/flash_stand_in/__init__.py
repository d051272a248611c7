"""flash-attn in plain torch, for ranks without a GPU; it is ours, and no part of any library.

A wiring installs `flash`, and `blocks` as well if its library goes around rings.
"""
