"""Plain training of one stream, as data in which a hypothesis changes one thing.

A pass uses the reference's model and knows no candidate. The trace shows which rank held a token:
the rank that reported its loss had computed it.

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

# Queries, keys and values.
QKV = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Pass:
    """One stream as a model reads it."""

    case: Case
    stream: Stream
    # The number of each token; -1 is padding.
    numbers_T: Tensor
    ids_T: Tensor
    positions_T: Tensor
    # The row of each token; padding has a row of its own.
    row_T: Tensor
    # Which of the sp ranks computes each token.
    peer_T: Tensor
    seen_TT: Tensor
    # How many times each key counts.
    key_counts_T: Tensor
    scale: float
    # The kv head that each head reads.
    kv_of_N: Tensor
    # Applied to queries, keys and values before attention.
    change_qkv: Callable[[QKV], QKV] = lambda qkv: qkv
    # Applied to the output of attention.
    change_output: Callable[[Tensor], Tensor] = lambda out_TNH: out_TNH
    change_logits: Callable[[Tensor], Tensor] = lambda logits_TV: logits_TV

    @property
    def is_padding(self) -> Tensor:
        return self.numbers_T < 0

    @property
    def shard_length(self) -> int:
        """The number of tokens on each rank if the stream is cut evenly."""
        return len(self.ids_T) // self.case.sp

    def attend(self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """Compute attention as plain training does, with the changes of this pass."""
        q_TNH, k_TKH, v_TKH = self.change_qkv((q_TNH, k_TKH, v_TKH))
        k_TNH, v_TNH = k_TKH[:, self.kv_of_N], v_TKH[:, self.kv_of_N]
        scores_NTT = torch.einsum("qnh,knh->nqk", q_TNH, k_TNH) * self.scale
        bias_TT = self.key_counts_T.log().expand(len(self.ids_T), -1)
        bias_TT = bias_TT.masked_fill(~self.seen_TT, -math.inf)
        # The softmax of a token that sees nothing is NaN; its output has to be zero.
        weights_NTT = (scores_NTT + bias_TT).softmax(-1).nan_to_num()
        return self.change_output(torch.einsum("nqk,knh->qnh", weights_NTT, v_TNH))

    def hidden(self, model: Decoder) -> Tensor:
        """Compute the last hidden state, which is the input of the head."""
        x_TD: Tensor = model(self.ids_T, self.positions_T, self.attend, ignore, lambda x, _: x)
        return x_TD


# A hypothesis yields triples: a name, what exactly is wrong, and the pass with it.
Variants = Iterator[tuple[str, str, Pass]]


def plain_passes(case: Case, owner_n: Tokens) -> list[Pass]:
    """Return plain training, stream by stream."""
    return [_plain_pass(case, stream, owner_n) for stream in plan(case).streams]


def _plain_pass(case: Case, stream: Stream, owner_n: Tokens) -> Pass:
    spans, pad = stream.spans, stream.pad

    def concatenate(parts: Sequence[range | Sequence[int]], tail: Sequence[int]) -> Tensor:
        return torch.tensor([number for part in (*parts, tail) for number in part])

    rows = [(i, span.row, range(span.stop - span.start)) for i, span in enumerate(spans)]
    numbers_T = concatenate(
        [range(case.offsets[row], case.offsets[row + 1]) for _, row, _ in rows], [-1] * pad
    )
    row_T = concatenate([[i] * len(places) for i, _, places in rows], [len(spans)] * pad)
    # No rank reports padding: it is taken to lie as in a stream that is cut evenly.
    peer_T = torch.arange(len(numbers_T)) // stream.local_length
    known_T = torch.from_numpy(owner_n)[numbers_T.clamp(min=0)]
    peer_T = torch.where((numbers_T >= 0) & (known_T >= 0), known_T % case.sp, peer_T)
    return Pass(
        case=case,
        stream=stream,
        numbers_T=numbers_T,
        ids_T=concatenate([case.ids_of(row) for _, row, _ in rows], [case.pad_id] * pad),
        positions_T=concatenate([places for _, _, places in rows], range(pad)),
        row_T=row_T,
        peer_T=peer_T,
        seen_TT=causal_mask(row_T, case.window),
        key_counts_T=torch.ones(len(numbers_T), dtype=torch.float64),
        scale=case.head_dim**-0.5,
        kv_of_N=torch.arange(case.heads) // (case.heads // case.kv_heads),
    )


def causal_mask(row_T: Tensor, window: int | None) -> Tensor:
    """Return which token (first dim) sees which: itself and earlier ones of its row and window."""
    at_T = torch.arange(len(row_T))
    back_TT = at_T[:, None] - at_T[None, :]
    seen_TT = (row_T[:, None] == row_T[None, :]) & (back_TT >= 0)
    return seen_TT if window is None else seen_TT & (back_TT < window)


@dataclass(frozen=True, eq=False)
class Forward:
    """The passes of all streams through one model, with results by token number."""

    case: Case
    passes: list[Pass]

    @cached_property
    def model(self) -> Decoder:
        model = Decoder(self.case, torch.float64)
        model.recompute = False
        return model

    def with_passes(self, passes: list[Pass]) -> "Forward":
        """Return other passes through the same model."""
        other = Forward(self.case, passes)
        # The dataclass is frozen; this fills the cache of the property.
        other.__dict__["model"] = self.model
        return other

    @cached_property
    def hidden(self) -> Tensor:
        pieces = [stream.hidden(self.model)[~stream.is_padding] for stream in self.passes]
        numbers = torch.cat([stream.numbers_T[~stream.is_padding] for stream in self.passes])
        return torch.cat(pieces)[numbers.argsort()]

    @cached_property
    def logits(self) -> Tensor:
        return self.passes[0].change_logits(self.model.logits(self.hidden))

    @cached_property
    def nll_by_label(self) -> Values:
        """The loss of each token for each label that it could have."""
        nll_nV: Values = -self.logits.detach().log_softmax(-1).numpy()
        return nll_nV

    def gradients(self, of_logits_nV: Tensor) -> dict[str, Values]:
        """Compute the gradients of all parameters from those of the logits."""
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        # For anything but a scalar, torch imports an algebra system, which takes half a second.
        scalar = (self.logits * of_logits_nV).sum()
        found = torch.autograd.grad(scalar, parameters, retain_graph=True, materialize_grads=True)
        return {
            f"{GRADIENT}{name}": gradient.numpy()
            for name, gradient in zip(names, found, strict=True)
        }
