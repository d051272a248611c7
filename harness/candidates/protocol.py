"""What an implementation under test has to be: two methods and a name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harness.case import Case

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


# What this process has in plain torch in the place of the package; it goes into every result.
STOOD_IN: set[str] = set()


@dataclass(frozen=True, slots=True)
class Rank:
    """Where this process stands in the mesh of one case."""

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

    `tokens` gives the global token number of each row, obtained by sending numbers through the
    candidate's own sharding, -1 where a row is padding. Without them the tensor is a replica:
    every rank emits it and all copies must agree to the last bit.
    """

    def __call__(
        self, key: str, tensor: "torch.Tensor", tokens: "torch.Tensor | None" = None
    ) -> None: ...


@runtime_checkable
class Candidate(Protocol):
    """An implementation of one sequence-parallel training step.

    `run` builds the model from the case's seed, takes the step and emits `nll` (the losses of
    this rank's tokens, with their numbers), `loss`, and `grad.<parameter>` as its optimizer
    would see it. It never compares, catches or prints.

    It may have `limits`, a text such as "loss=token-mean window=none": what it supports of single
    fields, so that no other cases are drawn for it.
    """

    name: str

    def supports(self, case: Case) -> str | None:
        """None, or the reason why this case cannot be run."""

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        """One step on one rank."""
