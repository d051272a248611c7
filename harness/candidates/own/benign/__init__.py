"""Benign variants: right steps with one change that looks wrong.

The check must pass them all. Each module changes one part of the step:

- `layout` and `held`: which rank holds which token; `padding`: what fills the gaps;
- `labels`: where labels are shifted;
- `exchange`, `held` and `rings`: what ranks send to each other;
- `attention` and `partials`: how attention is computed;
- `loss` and `scale`: how losses are combined; `gradients`: how gradients are reduced;
- `recipes`: several of these in steps of other models and losses.

docs/mutants.md shows the docstrings of registered classes, in the order of the imports below.
"""

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
    recipes,
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
    "recipes",
    "rings",
    "scale",
]
