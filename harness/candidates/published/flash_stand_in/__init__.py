"""flash-attn in plain torch, for ranks without a GPU; it is no part of any library.

A wiring installs `flash`; if its library has rings, it installs `blocks` as well.
"""
