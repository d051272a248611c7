"""Steps with yunchang's attention layers in our decoder, on its own layouts."""

from collections.abc import Callable
from dataclasses import fields
from unittest.mock import patch

from torch import Tensor

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.candidates.published.wiring.decoder import (
    Part,
    in_fp64,
    right_padded,
    train_shares,
    window_size,
)
from harness.candidates.published.wiring.rows import Padded
from harness.candidates.published.yunchang import groups
from harness.candidates.published.yunchang.library import (
    EXTRACT_FUNC_DICT,
    AsyncLongContextAttention,
    AttnType,
    LongContextAttention,
    UlyssesAttention,
    flash_attn_func,
)
from harness.case import Case
from harness.reference.decoder import Attend

# attention(q, k, v, causal=, window_size=) on one rank's part of a table of rows.
Attention = Callable[..., Tensor]


def ulysses(case: Case, rank: Rank, emit: Emit) -> None:
    layer = UlyssesAttention(sequence_process_group=rank.sp, attn_type=AttnType.FA)
    step(case, rank, emit, layer if case.sp > 1 else flash_attn_func, "basic", (case.sp, 1))


def zigzag(case: Case, rank: Rank, emit: Emit) -> None:
    degrees = 1, case.sp
    step(case, rank, emit, hybrid(case, degrees, AttnType.FA), "zigzag", degrees)


def zigzag_fa3(case: Case, rank: Rank, emit: Emit) -> None:
    degrees = 1, case.sp
    step(case, rank, emit, hybrid(case, degrees, AttnType.FA3), "zigzag", degrees)


def usp(case: Case, rank: Rank, emit: Emit) -> None:
    degrees = 2, case.sp // 2
    step(case, rank, emit, hybrid(case, degrees, AttnType.FA), "zigzag", degrees)


def asynchronous(case: Case, rank: Rank, emit: Emit) -> None:
    degrees = case.sp, 1
    if case.sp == 1:
        step(case, rank, emit, flash_attn_func, "zigzag", degrees)
        return
    groups.use(*degrees)
    with patch("torch.cuda.Stream"):
        layer = AsyncLongContextAttention(ring_impl_type="zigzag")

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        k, v = (x.repeat_interleave(case.heads // case.kv_heads, 2) for x in (k, v))
        with patch("torch.cuda.stream"):
            out: Tensor = layer(q, k, v, **options)
        return out

    step(case, rank, emit, in_fp64(attend), "zigzag", degrees)


def hybrid(case: Case, degrees: tuple[int, int], kernel: AttnType) -> Attention:
    """Return a ring of Ulysses groups; on one rank, the kernel that these would call."""
    if case.sp == 1:
        attention: Attention = flash_attn_func
        return attention
    groups.use(*degrees)
    return in_fp64(LongContextAttention(ring_impl_type="zigzag", attn_type=kernel))


def step(
    case: Case,
    rank: Rank,
    emit: Emit,
    attention: Attention,
    layout: str,
    degrees: tuple[int, int],
) -> None:
    """Train on tables of rows, padded behind to a length that the layout divides."""
    window = window_size(case)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True, window_size=window)

    def cut(table: Tensor) -> Tensor:
        part: Tensor = EXTRACT_FUNC_DICT[layout](
            table, rank.sp_index, world_size=case.sp, rd=degrees[1], ud=degrees[0]
        )
        return part

    def own_part(batch: Padded) -> tuple[Part, Attend]:
        whole = right_padded(batch, case.sp if layout == "basic" else 2 * case.sp)
        if case.sp == 1:
            return whole, attend
        return Part(*(cut(getattr(whole, field.name)) for field in fields(whole))), attend

    train_shares(case, rank, emit, own_part)


STEPS: dict[str, Step] = {
    "ulysses": ulysses,
    "zigzag": zigzag,
    "zigzag-fa3": zigzag_fa3,
    "usp": usp,
    "async": asynchronous,
}
