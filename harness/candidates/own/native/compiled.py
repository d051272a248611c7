"""Layers through torch.compile, from one exchange to the next.

Collectives, and the taps that read what is between, stay outside of the graphs.
"""

import torch

from harness.reference.decoder import Decoder


def compile_layers(model: Decoder, device: torch.device) -> None:
    """Compile what each layer does to tokens by themselves, for streams of any length."""
    # torch gives up on a function after a few models of other shapes, and every case has its own.
    torch.compiler.reset()
    # Without an accelerator, inductor needs a C++ compiler and 17 seconds for its first kernel.
    # What it does before that, tracing and differentiating ahead of time, is the same here.
    backend = "aot_eager" if device.type == "cpu" else "inductor"
    for layer in model.layers:
        for part in ("project", "feed_forward"):
            # With `fullgraph` what is not compiled is an error, and not run as it is in silence.
            compiled = torch.compile(
                getattr(layer, part), fullgraph=True, dynamic=True, backend=backend
            )
            setattr(layer, part, compiled)
