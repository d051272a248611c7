"""One thing that can be wrong with a step, as a change of plain training.

A hypothesis changes the table of each micro-batch, as a step has it, and then makes parts of the
global batch, whose losses are added up. It has the name of an anomaly. A step has that anomaly if
its gradients are what the hypothesis predicts.

Legend: B rows, S columns.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from harness.case import Case
from harness.recipes.attention_mask import Seen, seeing
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.calls import Answered, Calls, as_they_are

# Batches, and the factor of the loss of each.
Parts = list[tuple[float, Batch]]
# Returns the shard of each token of a micro-batch.
Layout = Callable[[Batch, Case], Tensor]
# Functions of torch, and what is called in their place.
Operation = Callable[..., Any]
Operations = Mapping[Operation, Operation]


def as_it_is(_model: nn.Module) -> None:
    """Leave the model as it is."""


class NotTaken(Exception):
    """A loss has nothing that a hypothesis changes."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One fault of a step, as plain training would have it."""

    anomaly: str
    # What is done wrong, as a sentence.
    how: str
    # What becomes of the table of one micro-batch: the changed tensors.
    change: Callable[[Batch, Case], Batch] = lambda _batch, _case: {}
    # What becomes of the global batch.
    parts: Callable[[Batch, Case], Parts] = lambda batch, _case: [(1.0, batch)]
    # The case for which the model is built.
    case: Callable[[Case], Case] = lambda case: case
    # What becomes of the model, in place.
    model: Callable[[nn.Module], None] = as_it_is
    # What attention sees in place of what it should, if the batch alone does not say it.
    seen: Seen | None = None
    # What the loss is handed in place of the model's logits.
    logits: Answered = as_they_are
    # What model and loss compute with in place of functions of torch.
    operations: Operations = field(default_factory=dict)
    # Whether masks, positions and logits change in calls alone that leave no gradient.
    without_gradient: bool = False

    @property
    def name(self) -> str:
        return f"{self.anomaly}: {self.how}"

    def of(self, micro_batches: list[Batch], case: Case) -> Parts:
        """Return the parts of the global batch of these micro-batches."""
        changed = [batch | self.change(batch, case) for batch in micro_batches]
        width = max(batch["input_ids"].shape[1] for batch in changed)
        changed = [widened(batch, width) for batch in changed]
        together = {name: torch.cat([b[name] for b in changed]) for name in changed[0]}
        return self.parts(together, case)

    @contextmanager
    def holding(self, model: nn.Module, batch: Batch, case: Case) -> Iterator[None]:
        """Have the model and its loss compute a part as the hypothesis says."""
        calls = Calls(model, batch, case, self.logits, self.without_gradient)
        with (
            calls.changed(),
            seeing(model, calls.limited(self.seen), batch),
            computing_with(self.operations),
        ):
            yield
        if self.without_gradient and not calls.are_met:
            raise NotTaken


class Exchanged(TorchFunctionMode):
    """Calls other functions in place of some of torch."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(
        self, func: Operation, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return self._operations.get(func, func)(*args, **(kwargs or {}))


def computing_with(operations: Operations) -> AbstractContextManager[object]:
    """Exchange operations, if there are any; a mode would slow down all others."""
    return Exchanged(operations) if operations else nullcontext()


def by_columns(batch: Batch, case: Case) -> Tensor:
    """The shards if columns of the padded table are cut."""
    width = batch["input_ids"].shape[1]
    return (columns_of(batch) // -(-width // case.sp)).expand_as(batch["input_ids"])


def by_stream(batch: Batch, case: Case) -> Tensor:
    """The shards if rows are packed end to end, and the stream is cut."""
    return places_of(batch) // shard_of_stream(batch, case)


def columns_of(batch: Batch) -> Tensor:
    return torch.arange(batch["input_ids"].shape[1], device=batch["input_ids"].device)


def places_of(batch: Batch) -> Tensor:
    """The place of each token in the packed stream -> BS."""
    real_BS = batch["attention_mask"]
    return (real_BS.flatten().cumsum(0) - 1).clamp(min=0).view_as(real_BS)


def shard_of_stream(batch: Batch, case: Case) -> int:
    """The number of tokens of each shard of the packed stream."""
    return -(-int(batch["attention_mask"].sum()) // case.sp)


def pieces_of(batch: Batch, case: Case) -> tuple[Tensor, int]:
    """The piece of each column if all are dealt from either end, two to a rank; and its width.

    Rank r has the pieces r and 2 sp - 1 - r ("zigzag"), so that causal work is even.
    """
    width = -(-batch["input_ids"].shape[1] // (2 * case.sp))
    return columns_of(batch) // width, width


def by_dealt_columns(batch: Batch, case: Case) -> Tensor:
    """The shards if columns of the padded table are dealt from either end."""
    piece_S, _ = pieces_of(batch, case)
    shard_S = torch.minimum(piece_S, 2 * case.sp - 1 - piece_S)
    return shard_S.expand_as(batch["input_ids"])


DEALT = "columns dealt from either end"
LAYOUTS: dict[str, Layout] = {
    "columns": by_columns,
    "the packed stream": by_stream,
    DEALT: by_dealt_columns,
}


def widened(batch: Batch, width: int) -> Batch:
    """Pad every table on the right to this width; ids with zero, as steps do that cut a table."""
    size = batch["input_ids"].shape
    return {
        name: F.pad(
            x.movedim(1, -1), (0, width - size[1]), value=IGNORED if name == "labels" else 0
        ).movedim(-1, 1)
        if x.shape[:2] == size
        else x
        for name, x in batch.items()
    }


def evenly_widened(batch: Batch, case: Case, *, more: int = 0) -> Batch:
    """Pad the table so that all shards of columns are equal, and `more` columns follow."""
    width = batch["input_ids"].shape[1]
    return widened(batch, width + -width % case.sp + more)


def is_edge(shard_BS: Tensor) -> Tensor:
    """Whether a token is the first of its shard, and has one before it in its row."""
    return F.pad(shard_BS[:, 1:] != shard_BS[:, :-1], (1, 0))
