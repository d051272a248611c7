"""Micro-batches as Megatron-LM's data sets make them, cut by the library.

Legend: S a row's tokens, L those of them that this rank has, B rows.
"""

from typing import Any

import torch
from megatron.core.utils import get_batch_on_this_cp_rank, get_thd_batch_on_this_cp_rank
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.protocol import Rank
from harness.candidates.published.wiring.rows import PADDING, Padded

Batch = dict[str, Tensor]


def columns(batch: Padded, row: int, multiple: int, *, ahead: bool) -> tuple[Batch, int]:
    """One row padded behind, each label that of the next token; and its length before padding.

    `ahead` puts a token in front. A further depth embeds the next token in each place, and place t
    then has the embedding of token t of the row.
    """
    real = batch.attended_BS[row].bool()
    numbers_S = batch.tokens_BS[row, real]
    front = (int(ahead), 0)
    ids_S = F.pad(batch.ids_BS[row, real], front)
    targets_S = F.pad(batch.targets_BS[row, real], front)
    size = len(ids_S)
    behind = -size % multiple
    places_S = torch.arange(size + behind)
    made = {
        "tokens": F.pad(ids_S, (0, behind)),
        "labels": F.pad(ids_S[1:], (0, behind + 1)),
        "loss_mask": F.pad(targets_S[1:].float(), (0, behind + 1)),
        # Trained losses that count.
        "counted": F.pad(targets_S[1 + ahead :].float(), (0, behind + 1 + ahead)),
        "position_ids": places_S,
        "numbers": F.pad(numbers_S, (0, behind + size - len(numbers_S)), value=PADDING),
        "sequence": torch.full_like(places_S, row),
        "place": places_S,
    }
    return made, size


def table(batch: Padded, rank: Rank, *, ahead: bool) -> tuple[Batch, None]:
    """Rows of one length, which 2 sp divides."""
    longest = int(batch.attended_BS.sum(1).max()) + ahead
    multiple = longest + -longest % pieces(rank)
    rows = [columns(batch, row, multiple, ahead=ahead)[0] for row in range(len(batch.ids_BS))]
    whole = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    return get_batch_on_this_cp_rank(whole, rank.sp), None


def pack(batch: Padded, rank: Rank, *, ahead: bool, padded_ends: bool) -> tuple[Batch, Any]:
    """Rows end to end, each padded to what 2 sp divides."""
    made = [columns(batch, row, pieces(rank), ahead=ahead) for row in range(len(batch.ids_BS))]
    rows = [row for row, _ in made]
    whole = {key: torch.cat([row[key] for row in rows])[None] for key in rows[0]}
    padded = ends_of([len(row["tokens"]) for row in rows])
    ends = padded if padded_ends else ends_of([size for _, size in made])
    longest = (padded[1:] - padded[:-1]).max()[None]
    cut: tuple[Batch, Any] = get_thd_batch_on_this_cp_rank(
        whole, ends, padded, longest, rank.sp.size(), rank.sp.rank()
    )
    return cut


def pieces(rank: Rank) -> int:
    """The number of pieces that each row is cut into: two for every rank, or one on one rank."""
    return 1 if rank.sp.size() == 1 else 2 * rank.sp.size()


def ends_of(sizes: list[int]) -> Tensor:
    return F.pad(torch.tensor(sizes).cumsum(0), (1, 0)).int()
