"""Changes of the native candidate that must not be flagged."""

from harness.candidates.bank import BENIGN
from harness.candidates.own.benign import (
    attention,
    exchange,
    gradients,
    labels,
    layout,
    loss,
    padding,
    scale,
    sharing,
)

BANK = BENIGN

__all__ = [
    "BANK",
    "attention",
    "exchange",
    "gradients",
    "labels",
    "layout",
    "loss",
    "padding",
    "scale",
    "sharing",
]
