"""What a step is given: its place among the ranks, and a function that takes its tensors."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Rank:
    """The place of this process in the mesh of one case."""

    index: int
    dp_index: int
    sp_index: int
    device: "torch.device"
    # The ranks that hold the same part of the sequence in the other replicas.
    dp: "ProcessGroup"
    # The ranks that share this replica's sequence, in sequence order.
    sp: "ProcessGroup"
    # All dp x sp ranks of the case.
    world: "ProcessGroup"


class Emit(Protocol):
    """Hand a tensor to the harness.

    `tokens` has the token number of each row of the tensor, and -1 for padding. A candidate gets
    them by sharding the numbers as it shards the ids. Without `tokens` the tensor is a replica:
    every rank emits it, and all copies must agree to the last bit.
    """

    def __call__(
        self, key: str, tensor: "torch.Tensor", tokens: "torch.Tensor | None" = None
    ) -> None: ...
