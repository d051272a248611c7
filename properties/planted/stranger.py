"""A user's step with a transformers model that the harness does not have, under Ulysses.

Each replica packs its rows into one stream. The loss is the mean over the targets of all replicas.
Each part that a subclass gets wrong is a method.

Legend: T tokens of the stream, L tokens on this rank.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.nn import functional as F
from transformers import AttentionInterface

from harness.candidates import Emit, Rank
from harness.case import Case

ULYSSES = "ulysses"
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
# The values of fields that the step supports.
SUPPORTED: dict[str, tuple[object, ...]] = {
    "dtype": tuple(DTYPES),
    "loss": ("token-mean",),
    "steps": (1,),
    "nudge": (0.0,),
    "window": (None,),
    "kernel": ("eager", "sdpa"),
    "wrapper": ("none",),
    "checkpoint": (False,),
    "compiled": (False,),
}
# With smaller weights attention would be uniform, and experts would tie.
GAIN = 1.5


class Tokens(NamedTuple):
    """The tokens of a stream or of a rank; `counts` is 1 where the label is a target."""

    ids: Tensor
    positions: Tensor
    labels: Tensor
    counts: Tensor
    numbers: Tensor


class Stranger:
    """A correct step for any model of `transformers`; a subclass builds the model."""

    def __init__(self, name: str) -> None:
        self.name = name

    def build_model(self, case: Case) -> Any:
        """Build the model with any weights."""
        raise NotImplementedError

    def supports(self, case: Case) -> str | None:
        for field, values in SUPPORTED.items():
            value = getattr(case, field)
            if value not in values:
                return f"{field}={value}: this step has {' or '.join(map(str, values))} only"
        return None

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        stream = self.stream(case, rank)
        shard = self.shard(stream, rank)
        rows_T = self.number_rows(stream.positions, rank)
        causal_TT = torch.ones(len(rows_T), len(rows_T), device=rank.device).tril().bool()
        allowed_TT = causal_TT & (rows_T[:, None] == rows_T)
        AttentionInterface.register(ULYSSES, partial(self.attention, rank, allowed_TT))
        model = self.seeded_model(case).to(rank.device).train()

        logits = model(input_ids=shard.ids[None], position_ids=shard.positions[None]).logits[0]
        is_half = logits.dtype.itemsize < 4
        nll_L = F.cross_entropy(
            logits.float() if is_half else logits, shard.labels, reduction="none"
        )
        emit("positions", shard.positions, shard.numbers)
        emit("labels", shard.labels, shard.numbers)
        emit("nll", nll_L, shard.numbers)
        loss = (nll_L * shard.counts).sum() / self.divisor(case, shard, rank)
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            emit(f"grad.{name}", self.reduce_gradient(name, parameter.grad, rank))
        loss = loss.detach()
        dist.all_reduce(loss, group=rank.world)
        emit("loss", loss)

    def seeded_model(self, case: Case) -> Any:
        """Build the model with weights from the case's seed, drawn in fp64 and rounded."""
        model, dtype = self.build_model(case), DTYPES[case.dtype]
        model.set_attn_implementation(ULYSSES)
        # The default implementation does not support fp64.
        model.set_experts_implementation("eager")
        generator = torch.Generator().manual_seed(case.seed)
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            is_norm = drawn.dim() == 1
            weight = 1 + 0.2 * drawn if is_norm else GAIN * drawn / drawn.shape[-1] ** 0.5
            parameter.data = weight.to(dtype)
        return model

    def stream(self, case: Case, rank: Rank) -> Tokens:
        """Join the rows of this replica; each pad token at the end is a row of its own."""
        rows = range(rank.dp_index, len(case.rows), case.dp)
        columns = torch.tensor(
            [
                (token, t, case.offsets[r] + t, t > 0 and case.rows[r].mask[t] == "1")
                for r in rows
                for t, token in enumerate(case.ids_of(r))
            ],
            device=rank.device,
        )
        pad = (0, -len(columns) % case.sp)
        ids, positions, numbers, targets = columns.T
        labels, counts = ids.roll(-1), targets.roll(-1)
        return Tokens(
            F.pad(ids, pad, value=case.pad_id),
            F.pad(positions, pad),
            F.pad(labels, pad, value=case.pad_id),
            F.pad(counts, pad),
            F.pad(numbers, pad, value=-1),
        )

    def shard(self, stream: Tokens, rank: Rank) -> Tokens:
        sp = rank.sp.size()
        return Tokens(*(column_T.chunk(sp)[rank.sp_index] for column_T in stream))

    def number_rows(self, positions_T: Tensor, _rank: Rank) -> Tensor:
        """Return which row each token belongs to."""
        return (positions_T == 0).cumsum(0)

    def attention(
        self,
        rank: Rank,
        allowed_TT: Tensor,
        layer: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        _mask: Tensor | None,
        scaling: float,
        **_options: object,
    ) -> tuple[Tensor, None]:
        """Attend as Ulysses does; q, k and v of this rank's tokens come as [1, heads, L, dim]."""
        k, v = (self.repeat_heads(x, layer.num_key_value_groups, rank) for x in (k, v))
        q, k, v = self.exchange_tokens(layer, q, k, v, rank)
        out = F.scaled_dot_product_attention(q, k, v, allowed_TT, scale=scaling)
        return exchange(out, 2, 1, rank.sp).transpose(1, 2), None

    def repeat_heads(self, x: Tensor, times: int, _rank: Rank) -> Tensor:
        """Repeat heads of keys or values until there is one for each head of queries."""
        return x.repeat_interleave(times, 1)

    def exchange_tokens(
        self, _layer: Any, q: Tensor, k: Tensor, v: Tensor, rank: Rank
    ) -> tuple[Tensor, ...]:
        """Exchange heads for tokens; the head dim of values may differ from that of keys."""
        return tuple(exchange(x, 1, 2, rank.sp) for x in (q, k, v))

    def divisor(self, case: Case, _mine: Tokens, _rank: Rank) -> int | Tensor:
        """Return what the sum of this rank's losses is divided by."""
        return max(sum(len(row.supervised()) for row in case.rows), 1)

    def reduce_gradient(self, _name: str, gradient: Tensor, rank: Rank) -> Tensor:
        """Sum a gradient over all ranks, as the optimizer sees it."""
        dist.all_reduce(gradient, group=rank.world)
        return gradient


def exchange(x: Tensor, scatter: int, gather: int, group: ProcessGroup) -> Tensor:
    """Split dim `scatter` over the group and join what arrives along dim `gather`."""
    pieces = torch.stack(x.chunk(group.size(), scatter))
    received = all_to_all_single_autograd(pieces, None, None, group)
    return torch.cat(tuple(received), gather)


def planted(*faults: Callable[[str], Stranger]) -> dict[str, Stranger]:
    """Make one candidate of each class, named after the class in upper case."""
    names = [re.sub(r"\B(?=[A-Z])", "_", fault.__name__).upper() for fault in faults]
    return {name: fault(name) for name, fault in zip(names, faults, strict=True)}
