"""What a run is made of. Standard library only: a case can be read without torch."""

from harness.case.case import (
    LEARNING_RATE,
    Case,
    Dtype,
    Kernel,
    LossContract,
    Model,
    Sync,
    Wrapper,
)
from harness.case.invalid import InvalidCase
from harness.case.padded import from_padded
from harness.case.row import Row, Side
from harness.case.text import parse

__all__ = [
    "LEARNING_RATE",
    "Case",
    "Dtype",
    "InvalidCase",
    "Kernel",
    "LossContract",
    "Model",
    "Row",
    "Side",
    "Sync",
    "Wrapper",
    "from_padded",
    "parse",
]
