"""A case: everything that determines one judged training step, and nothing else.

* A *row* is a ragged sequence of real tokens with a loss mask.
* A *target* is a token whose mask bit is 1 and that has a token before it: the loss counts it.
* A *line* is a case as one line of text; `parse(str(case)) == case`.
* A *stated* field is one that a caller fixes instead of having it drawn, such as `window=none`.

1. A case is valid by construction. Every mistake raises `InvalidCase` before any rank starts,
   with a message that names the field, its value, the rule and the remedy.
2. A case is frozen and is compared by value, so it can be a key of caches.
3. What is not stated follows from the seed through a hash, so that token ids and drawn numbers
   are the same on every rank, platform and Python version.
4. Only the standard library is imported, so that commands read cases quickly and without torch.
"""

from harness.case.case import (
    LEARNING_RATE,
    Case,
    Columns,
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
    "Columns",
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
