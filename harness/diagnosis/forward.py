"""Plain training of one stream, and what may be changed in it: one thing at a time.

A pass is written against the reference's model and knows no candidate. What a rank holds of it is
asked of the trace: who reported a token's loss had computed it.

Legend: T tokens of a stream with its padding, N heads, K kv heads, H head dim, V vocabulary,
D hidden, n any token of the case by its number.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.case import Case
from harness.plan import Stream, plan
from harness.reference.decoder import Decoder
from harness.reference.padded import ignore
from harness.trace import GRADIENT
from harness.trace.trace import Tokens, Values

Heads = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pass:
    """One stream as a model reads it."""

    case: Case
    stream: Stream
    # The number of each token; -1 is padding.
    numbers_T: Tensor
    ids_T: Tensor
    positions_T: Tensor
    # Which row each token is in; padding has one of its own.
    row_T: Tensor
    # Which of the sp ranks computes it.
    peer_T: Tensor
    seen_TT: Tensor
    # How often a key counts.
    times_T: Tensor
    scale: float
    # Which kv head each head reads.
    kv_of_N: Tensor
    # What becomes of queries, keys and values before attention, and of its output after it.
    before: Callable[[Heads], Heads] = lambda heads: heads
    after: Callable[[Tensor], Tensor] = lambda out_TNH: out_TNH
    # What becomes of the logits.
    read: Callable[[Tensor], Tensor] = lambda logits_TV: logits_TV

    @property
    def is_padding(self) -> Tensor:
        return self.numbers_T < 0

    @property
    def share(self) -> int:
        """How many tokens each rank holds, where it is cut evenly."""
        return len(self.ids_T) // self.case.sp

    def attend(self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """As everybody does it, but for what is changed."""
        q_TNH, k_TKH, v_TKH = self.before((q_TNH, k_TKH, v_TKH))
        k_TNH, v_TNH = k_TKH[:, self.kv_of_N], v_TKH[:, self.kv_of_N]
        scores_NTT = torch.einsum("qnh,knh->nqk", q_TNH, k_TNH) * self.scale
        bias_TT = self.times_T.log().expand(len(self.ids_T), -1)
        bias_TT = bias_TT.masked_fill(~self.seen_TT, -math.inf)
        # A token that sees nothing gets nothing.
        weights_NTT = (scores_NTT + bias_TT).softmax(-1).nan_to_num()
        return self.after(torch.einsum("nqk,knh->qnh", weights_NTT, v_TNH))

    def hidden(self, model: Decoder) -> Tensor:
        """The last hidden state, as the head is given it."""
        x_TD: Tensor = model(self.ids_T, self.positions_T, self.attend, ignore, lambda x, _: x)
        return x_TD


# What a hypothesis gives: a name, what exactly is wrong, and the pass with it.
Variants = Iterator[tuple[str, str, Pass]]


def passes(case: Case, owner_n: Tokens) -> list[Pass]:
    """Plain training, stream by stream."""
    return [_plain(case, stream, owner_n) for stream in plan(case).streams]


def _plain(case: Case, stream: Stream, owner_n: Tokens) -> Pass:
    spans, pad = stream.spans, stream.pad

    def together(parts: Sequence[range | Sequence[int]], tail: Sequence[int]) -> Tensor:
        return torch.tensor([number for part in (*parts, tail) for number in part])

    rows = [(i, span.row, range(span.stop - span.start)) for i, span in enumerate(spans)]
    numbers_T = together(
        [range(case.offsets[row], case.offsets[row + 1]) for _, row, _ in rows], [-1] * pad
    )
    row_T = together([[i] * len(places) for i, _, places in rows], [len(spans)] * pad)
    # Padding lies where a stream that is cut evenly has it.
    peer_T = torch.arange(len(numbers_T)) // stream.local_length
    known_T = torch.from_numpy(owner_n)[numbers_T.clamp(min=0)]
    peer_T = torch.where((numbers_T >= 0) & (known_T >= 0), known_T % case.sp, peer_T)
    return Pass(
        case=case,
        stream=stream,
        numbers_T=numbers_T,
        ids_T=together([case.ids_of(row) for _, row, _ in rows], [case.pad_id] * pad),
        positions_T=together([places for _, _, places in rows], range(pad)),
        row_T=row_T,
        peer_T=peer_T,
        seen_TT=sees(row_T, case.window),
        times_T=torch.ones(len(numbers_T), dtype=torch.float64),
        scale=case.head_dim**-0.5,
        kv_of_N=torch.arange(case.heads) // (case.heads // case.kv_heads),
    )


def sees(row_T: Tensor, window: int | None) -> Tensor:
    """Which token (first dim) sees which: itself and earlier ones of its row in its window."""
    at_T = torch.arange(len(row_T))
    back_TT = at_T[:, None] - at_T[None, :]
    seen_TT = (row_T[:, None] == row_T[None, :]) & (back_TT >= 0)
    return seen_TT if window is None else seen_TT & (back_TT < window)


@dataclass(frozen=True, eq=False)
class Forward:
    """What the passes of all streams come to, by token number."""

    case: Case
    passes: list[Pass]

    @cached_property
    def model(self) -> Decoder:
        model = Decoder(self.case, torch.float64)
        model.recompute = False
        return model

    def changed(self, passes: list[Pass]) -> "Forward":
        """Other passes of the same model."""
        other = Forward(self.case, passes)
        other.__dict__["model"] = self.model
        return other

    @cached_property
    def hidden(self) -> Tensor:
        pieces = [each.hidden(self.model)[~each.is_padding] for each in self.passes]
        numbers = torch.cat([each.numbers_T[~each.is_padding] for each in self.passes])
        return torch.cat(pieces)[numbers.argsort()]

    @cached_property
    def logits(self) -> Tensor:
        return self.passes[0].read(self.model.logits(self.hidden))

    @cached_property
    def surprise(self) -> Values:
        """What each token would lose by each label."""
        surprise_nV: Values = -self.logits.detach().log_softmax(-1).numpy()
        return surprise_nV

    def gradients(self, of_logits_nV: Tensor) -> dict[str, Values]:
        """Compute gradients of all parameters from those of the logits."""
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        # From a scalar: for anything else torch imports an algebra system, in half a second.
        through = (self.logits * of_logits_nV).sum()
        found = torch.autograd.grad(through, parameters, retain_graph=True, materialize_grads=True)
        return {
            f"{GRADIENT}{name}": gradient.numpy()
            for name, gradient in zip(names, found, strict=True)
        }
