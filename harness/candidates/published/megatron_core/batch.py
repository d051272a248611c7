"""Micro-batches as Megatron-LM's data sets make them, cut by the library.

Legend: S tokens of a row, L tokens of a row on this rank, B rows.
"""

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.wiring.rows import PADDING, Packed, Padded

Batch = dict[str, Tensor]
# The columns of a pack that the library cuts by name, and as many of ours.
CUT = ("tokens", "labels", "loss_mask", "position_ids")
OURS = ("numbers", "sequence", "place", "counted")


def columns_of(number: int, row: Packed, multiple: int, *, ahead: bool) -> tuple[Batch, int]:
    """Return a row padded behind, with shifted labels, and its length before padding.

    `ahead` puts a token in front. A further depth embeds the next token in each place, so that
    place t has the embedding of token t of the row.
    """
    front = (int(ahead), 0)
    ids_S, targets_S = F.pad(row.ids_T, front), F.pad(row.targets_T, front)
    size = len(ids_S)
    behind = -size % multiple
    positions_S = torch.arange(size + behind)
    columns = {
        "tokens": F.pad(ids_S, (0, behind)),
        "labels": F.pad(ids_S[1:], (0, behind + 1)),
        "loss_mask": F.pad(targets_S[1:].float(), (0, behind + 1)),
        # The trained losses that count for the log.
        "counted": F.pad(targets_S[1 + ahead :].float(), (0, behind + 1 + ahead)),
        "position_ids": positions_S,
        "numbers": F.pad(row.tokens_T, (0, behind + int(ahead)), value=PADDING),
        "sequence": torch.full_like(positions_S, number),
        "place": positions_S,
    }
    return columns, size


def table(batch: Padded, rank: Rank, *, ahead: bool) -> tuple[Batch, None]:
    """Return this rank's part of rows that have one length, a multiple of 2 sp."""
    longest = int(batch.attended_BS.sum(1).max()) + ahead
    multiple = longest + -longest % pieces(rank)
    rows = [columns_of(*row, multiple, ahead=ahead)[0] for row in enumerate(batch.rows)]
    whole = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    return get_batch_on_this_cp_rank(whole, is_hybrid_cp=False, cp_group=rank.sp), None


def pack(batch: Padded, rank: Rank, *, ahead: bool, padded_ends: bool) -> tuple[Batch, Any]:
    """Return this rank's part of rows end to end, each padded to a multiple of 2 sp."""
    sized = [columns_of(*row, pieces(rank), ahead=ahead) for row in enumerate(batch.rows)]
    rows = [row for row, _ in sized]
    whole = {key: torch.cat([row[key] for row in rows])[None] for key in rows[0]}
    padded = ends_of([len(row["tokens"]) for row in rows])
    ends = padded if padded_ends else ends_of([size for _, size in sized])
    return _cut_pack(whole, padded, rank), packed_params(
        ends, padded, max(len(row["tokens"]) for row in rows)
    )


def packed_params(ends: Tensor, padded: Tensor, longest: int, **ranks: Any) -> PackedSeqParams:
    """Return what a forward step says of a pack: its true lengths and those of its cut."""
    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=ends,
        cu_seqlens_kv=ends,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        **ranks,
    )


def _cut_pack(whole: Batch, padded: Tensor, rank: Rank) -> Batch:
    """Return this rank's part of each column; ours are cut under the library's names."""
    cut: Batch = {}
    for names in (CUT, OURS):
        columns = {known: whole[name] for known, name in zip(CUT, names, strict=True)}
        ends = {"cu_seqlens": padded[None], "cu_seqlens_padded": padded[None]}
        part = get_batch_on_this_cp_rank(columns | ends, is_hybrid_cp=False, cp_group=rank.sp)
        cut |= {name: part[known] for known, name in zip(CUT, names, strict=True)}
    return cut


def pieces(rank: Rank) -> int:
    """Return into how many pieces a row is cut: two for every rank, or one on one rank."""
    return 1 if rank.sp.size() == 1 else 2 * rank.sp.size()


def ends_of(sizes: list[int]) -> Tensor:
    """Return the cumulative lengths of rows, from zero."""
    return F.pad(torch.tensor(sizes).cumsum(0), (1, 0)).int()
