"""Changes of the native candidate that must not be flagged."""

from harness.candidates.bank import BENIGN
from harness.candidates.own.benign import (
    attention,
    exchange,
    gradients,
    held,
    labels,
    layout,
    loss,
    padding,
    rings,
    scale,
)

BANK = BENIGN

__all__ = [
    "BANK",
    "attention",
    "exchange",
    "gradients",
    "held",
    "labels",
    "layout",
    "loss",
    "padding",
    "rings",
    "scale",
]
