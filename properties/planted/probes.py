"""Candidates that run one part of the step on real ranks, or all of it with poisoned memory.

Legend: B rows, S longest row, L tokens on this rank, T tokens of the stream, P pad tokens at its
end, N heads, M heads on this rank, H head dim, s peers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode

from harness.candidates import Candidate, Emit, Rank
from harness.candidates.own.native import GATHER, LOCAL, GatherDialect, LocalDialect, Ulysses
from harness.candidates.own.native.exchange import (
    gather_tokens,
    gather_tokens_together,
    scatter_tokens,
)
from harness.candidates.own.native.rows import Batch, Sample, sampler
from harness.candidates.own.native.ulysses import GatherTokens, Shard, Stream
from harness.case import Case

Tensors = tuple[Tensor, ...]
# shape(size of the group) -> the shapes of the inputs on each rank.
Shape = Callable[[int], Sequence[tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Operator:
    """A linear function of what all ranks of a group hold together."""

    apply: Callable[[Tensors, ProcessGroup], Tensors]
    shapes: Shape
    # Whether its backward is the adjoint only for gradients that are the same on every peer.
    same_on_peers: bool = False


@dataclass(frozen=True, slots=True)
class Adjoint:
    """A candidate that emits <A x, y> and <x, A^T y> for each operator A, summed over the group.

    Tensors hold small whole numbers, which fp64 adds without rounding. So the two results are
    exactly equal if backward is the adjoint of forward.
    """

    name: str
    operators: dict[str, Operator]

    def supports(self, _case: Case) -> str | None:
        return None

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        common = torch.Generator().manual_seed(case.seed)
        own = torch.Generator().manual_seed(case.seed * case.sp + rank.sp_index + 1)
        for name, operator in self.operators.items():
            shapes = operator.shapes(case.sp)
            inputs = tuple(random_integers(shape, own, rank).requires_grad_() for shape in shapes)
            outputs = operator.apply(inputs, rank.sp)
            source = common if operator.same_on_peers else own
            upstream = tuple(random_integers(output.shape, source, rank) for output in outputs)
            gradients = torch.autograd.grad(outputs, inputs, upstream)
            emit(f"forward.{name}", inner_product(outputs, upstream, rank.sp))
            emit(f"backward.{name}", inner_product(inputs, gradients, rank.sp))
            for function in custom_functions(outputs):
                emit(f"through.{qualified_name(function)}", torch.ones(()))


def random_integers(shape: Sequence[int], source: torch.Generator, rank: Rank) -> Tensor:
    return torch.randint(-8, 9, tuple(shape), generator=source).double().to(rank.device)


def inner_product(left: Tensors, right: Tensors, group: ProcessGroup) -> Tensor:
    """Compute the inner product over the whole group."""
    total = torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum().detach()
    dist.all_reduce(total, group=group)
    return total


def custom_functions(outputs: Tensors) -> set[type]:
    """Collect the custom autograd functions that the gradients of these outputs pass through."""
    found: set[type] = set()
    nodes: list[Any] = [output.grad_fn for output in outputs]
    while nodes:
        node = nodes.pop()
        if hasattr(node, "_forward_cls"):
            found.add(node._forward_cls)
        nodes += [after for after, _ in getattr(node, "next_functions", ())]
    return found


def qualified_name(function: type) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def gather_losses(x: Tensors, group: ProcessGroup) -> Tensors:
    gathered: Tensor = GatherTokens.apply(x[0], group)  # type: ignore[no-untyped-call]
    return (gathered,)


ADJOINT = Adjoint(
    "adjoint",
    {
        "gather_tokens": Operator(
            lambda x_LNH, group: (gather_tokens(x_LNH[0], group),), lambda s: [(3, 2 * s, 5)]
        ),
        "scatter_tokens": Operator(
            lambda x_TMH, group: (scatter_tokens(x_TMH[0], group),), lambda s: [(3 * s, 2, 5)]
        ),
        "gather_tokens_together": Operator(
            gather_tokens_together, lambda s: [(3, 2 * s, 5), (3, s, 5), (3, s, 5)]
        ),
        "GatherTokens": Operator(gather_losses, lambda _s: [(7,)], same_on_peers=True),
    },
)


ATEN = torch.ops.aten
UNINITIALISED = {ATEN.empty, ATEN.empty_like, ATEN.empty_strided, ATEN.new_empty}


class Poison(TorchDispatchMode):
    """Fill all uninitialised memory with a given value.

    This is a mode of the dispatcher, since those of `torch.overrides` do not apply in backward.
    """

    def __init__(self, value: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.value, self.fills = value, 0

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in UNINITIALISED:
            self.fills += 1
            # Integers get their lowest value, which no step ever means.
            out.fill_(self.value if out.is_floating_point() else torch.iinfo(out.dtype).min)
        return out


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A candidate whose uninitialised memory holds a given value, so that none is zero by luck."""

    inner: Candidate
    value: float

    @property
    def name(self) -> str:
        return f"{self.inner.name} in {self.value}"

    def supports(self, case: Case) -> str | None:
        return self.inner.supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        with Poison(self.value) as poison:
            self.inner.run(case, rank, emit)
        assert poison.fills, "the candidate asked for no uninitialised memory: nothing was tried"


HUGE, NAN = 1e30, float("nan")
NAN_GATHER, HUGE_GATHER = Poisoned(GATHER, NAN), Poisoned(GATHER, HUGE)
NAN_LOCAL, HUGE_LOCAL = Poisoned(LOCAL, NAN), Poisoned(LOCAL, HUGE)


class GarbagePadding(Ulysses):
    """Padding of the batch holds an id outside the vocabulary, at a position far away."""

    def collate(self, case: Case, samples: list[Sample], rank: Rank) -> Batch:
        batch = super().collate(case, samples, rank)
        return replace(
            batch,
            ids_BS=batch.ids_BS.where(batch.attended_BS, 10**9),
            positions_BS=batch.positions_BS.where(batch.attended_BS, 10**6),
        )


class OtherTail(Ulysses):
    """Padding at the end of the stream holds other ids, labels and positions than usual."""

    def shard(self, case: Case, stream: Stream, rank: Rank) -> Shard:
        shard = super().shard(case, stream, rank)
        pad_L = shard.tokens_L < 0
        # Every pad token becomes a row of its own, instead of one row for all of them.
        real = len(shard.positions_TP) - shard.pad
        positions_TP = shard.positions_TP.clone()
        positions_TP[real:] = 0
        return replace(
            shard,
            ids_L=shard.ids_L.where(~pad_L, (case.pad_id + 1) % case.vocab),
            labels_L=shard.labels_L.where(~pad_L, (case.pad_id + 2) % case.vocab),
            positions_L=shard.positions_L.where(~pad_L, 0),
            positions_TP=positions_TP,
        )


class GarbagePaddingGather(GarbagePadding, GatherDialect):
    name = "garbage-padding-gather"


class GarbagePaddingLocal(GarbagePadding, LocalDialect):
    name = "garbage-padding-local"


class OtherTailGather(OtherTail, GatherDialect):
    name = "other-tail-gather"


class OtherTailLocal(OtherTail, LocalDialect):
    name = "other-tail-local"


PADDING_GATHER, PADDING_LOCAL = GarbagePaddingGather(), GarbagePaddingLocal()
TAIL_GATHER, TAIL_LOCAL = OtherTailGather(), OtherTailLocal()


@dataclass(frozen=True, slots=True)
class Draws:
    """A candidate that emits which of `size` rows each rank draws, for all sampler options."""

    name: str
    size: int

    def supports(self, _case: Case) -> str | None:
        return None

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        for key, options in sampler_options():
            rows = sampler(range(self.size), case.dp, rank.dp_index, seed=case.seed, **options)
            emit(f"{key} rank={rank.index}", torch.tensor(list(rows)))


def sampler_options() -> Iterator[tuple[str, dict[str, Any]]]:
    for shuffle, drop_last, epoch in product((False, True), (False, True), range(3)):
        options = {"shuffle": shuffle, "drop_last": drop_last, "epoch": epoch}
        yield f"{shuffle=} {drop_last=} {epoch=}", options


DRAWS_1000, DRAWS_23 = Draws("1000", 1000), Draws("23", 23)
