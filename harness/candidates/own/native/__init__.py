"""Our own sequence-parallel step: the candidate that must pass, and a text on Ulysses.

Read `ulysses` first: it follows one micro-batch from padded rows to reduced gradients. `exchange`
has the two all-to-alls, `attention` and `kernels` what happens between them. `rows` makes the
batches, `training` runs micro-batches and steps, `wrappers` puts DDP, FSDP or torch.compile around
the model, and `usable` reports which kernels this machine can run.

1. There are two dialects, because scripts in use scale loss and gradients in both ways.
2. Each part that scripts get wrong is a method, so that a mutant replaces this part and no other.
3. The number of each token is padded, cut and emitted like its id, so that the harness can compare
   tensors token by token without a rule for how they are sharded.
4. The model is the decoder of the reference. It knows no rows and no ranks: the step passes in
   attention, which alone depends on them, and so plain training runs the same layers.
"""

from harness.candidates.own.native.ulysses import GatherDialect, LocalDialect, Ulysses

GATHER = GatherDialect()
LOCAL = LocalDialect()

__all__ = ["GATHER", "LOCAL", "GatherDialect", "LocalDialect", "Ulysses"]
