"""Mutants of steps with recipes: other models, and losses of reinforcement learning.

A mutant derives from the step of one loss in `harness.candidates.own.shares`, and may name another
family. Modules have the names of the stages of a step, as those of our own model have.
"""

from harness.candidates.own.mutants.recipes import (
    attention,
    exchange,
    gradients,
    labels,
    loss,
    runtime,
    slicing,
)

STAGES = labels, slicing, exchange, attention, loss, gradients, runtime
