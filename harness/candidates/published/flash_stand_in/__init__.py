"""flash-attn in plain torch, for ranks without a GPU; of our own, and no part of any library.

`flash` is what a wiring installs, `blocks` what libraries that go around rings take beside it.
"""
