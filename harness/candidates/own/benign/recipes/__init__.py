"""Benign variants of steps with recipes: other models, and losses of reinforcement learning.

Trainers scale, count, gather and hold things in these ways. A variant derives from the step of one
loss in `harness.candidates.own.shares`, and may name another family.
"""

from harness.candidates.own.benign.recipes import (
    attention,
    gradients,
    layout,
    loss,
    reinforcement,
)

__all__ = ["attention", "gradients", "layout", "loss", "reinforcement"]
