"""Steps with ring-flash-attn's functions in our decoder, on the layouts of its tests and README.

Legend: T tokens of a stream, R rows.
"""

from collections.abc import Callable
from dataclasses import fields

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.flash_stand_in import blocks
from harness.candidates.published.library import Step
from harness.candidates.published.wiring.decoder import (
    Part,
    in_fp64,
    right_padded,
    train_shares,
    window_size,
)
from harness.candidates.published.wiring.packages import bare_packages
from harness.candidates.published.wiring.rows import IGNORED, PADDING, Padded
from harness.case import Case
from harness.reference.decoder import Attend

blocks.install()
# The package itself imports an adapter for a very old transformers.
bare_packages("ring_flash_attn")

from flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402
from ring_flash_attn.llama3_flash_attn_varlen import (  # noqa: E402
    llama3_flash_attn_prepare_cu_seqlens,
    llama3_flash_attn_varlen_func,
)
from ring_flash_attn.zigzag_ring_flash_attn import zigzag_ring_flash_attn_func  # noqa: E402
from ring_flash_attn.zigzag_ring_flash_attn_varlen import (  # noqa: E402
    zigzag_ring_flash_attn_varlen_func,
)


def zigzag(case: Case, rank: Rank, emit: Emit) -> None:
    """Train on a table of rows, padded behind to one length."""
    window = window_size(case)

    def layout(batch: Padded) -> tuple[Part, Attend]:
        part = each(right_padded(batch, 2 * case.sp), lambda x: dealt(x, rank, dim=1))

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if case.sp == 1:
                alone: Tensor = flash_attn_func(q, k, v, causal=True, window_size=window)
                return alone
            ring = in_fp64(zigzag_ring_flash_attn_func)
            return ring(q, k, v, causal=True, window_size=window, group=rank.sp)

        return part, attend

    train_shares(case, rank, emit, layout)


def zigzag_varlen(case: Case, rank: Rank, emit: Emit) -> None:
    """Train on rows end to end, each padded and dealt by itself."""
    window = window_size(case)

    def layout(batch: Padded) -> tuple[Part, Attend]:
        rows = [unpadded(batch, row, 2 * case.sp) for row in range(len(batch.ids_BS))]
        parts = [each(row, lambda x: dealt(x, rank, dim=0)) for row in rows]
        ends_R = torch.tensor([0, *(len(part.ids) for part in parts)]).cumsum(0).int()
        longest = max(len(part.ids) for part in parts)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if case.sp == 1:
                alone: Tensor = flash_attn_varlen_func(
                    q, k, v, ends_R, ends_R, longest, longest, causal=True, window_size=window
                )
                return alone
            ring = in_fp64(zigzag_ring_flash_attn_varlen_func)
            return ring(q, k, v, ends_R, longest, causal=True, window_size=window, group=rank.sp)

        return joined(parts), attend

    train_shares(case, rank, emit, layout)


def llama3(case: Case, rank: Rank, emit: Emit) -> None:
    """Train on rows end to end, cut into as many pieces as ranks."""
    window = window_size(case)

    def layout(batch: Padded) -> tuple[Part, Attend]:
        rows = [unpadded(batch, row, 1) for row in range(len(batch.ids_BS))]
        ends = torch.tensor([0, *(len(row.ids) for row in rows)]).cumsum(0).tolist()
        whole = padded_to(joined(rows), case.sp)
        if len(whole.ids) > ends[-1]:
            ends.append(len(whole.ids))
        q_ends_R, k_ends_R, longest_q, longest_k, k_slice = llama3_flash_attn_prepare_cu_seqlens(
            torch.tensor(ends, dtype=torch.int32), True, rank.sp_index, case.sp
        )

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return in_fp64(llama3_flash_attn_varlen_func)(
                *(q, k, v, q_ends_R, k_ends_R, longest_q, longest_k),
                heads_k_stride=1,
                local_k_slice=k_slice,
                causal=True,
                window_size=window,
                group=rank.sp,
            )

        return each(whole, lambda x: x.chunk(case.sp)[rank.sp_index]), attend

    train_shares(case, rank, emit, layout)


def each(part: Part, function: Callable[[Tensor], Tensor]) -> Part:
    """Apply a function to each field of a part."""
    return Part(*(function(getattr(part, field.name)) for field in fields(part)))


def joined(parts: list[Part]) -> Part:
    """Concatenate each field of the parts."""
    return Part(
        *(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(Part))
    )


def unpadded(batch: Padded, row: int, multiple: int) -> Part:
    """Return one row alone, padded to the multiple."""
    real_S = batch.attended_BS[row : row + 1].bool().any(0)
    alone = Padded(*(getattr(batch, field.name)[row : row + 1, real_S] for field in fields(batch)))
    return each(right_padded(alone, multiple), lambda x: x[0])


def padded_to(part: Part, multiple: int) -> Part:
    """Return a stream with padding that is a row of its own."""
    more = -len(part.ids) % multiple
    return Part(
        F.pad(part.ids, (0, more)),
        torch.cat((part.positions, torch.arange(more))),
        F.pad(part.labels, (0, more), value=IGNORED),
        F.pad(part.tokens, (0, more), value=PADDING),
    )


def dealt(x: Tensor, rank: Rank, dim: int) -> Tensor:
    """Return a rank's two pieces: one from the front and its mirror from the back."""
    pieces = x.chunk(2 * rank.sp.size(), dim)
    return torch.cat((pieces[rank.sp_index], pieces[-1 - rank.sp_index]), dim)


STEPS: dict[str, Step] = {"zigzag": zigzag, "zigzag-varlen": zigzag_varlen, "llama3": llama3}
