"""A micro-batch on its way through DeepSpeed's data loader adapter."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPDataLoaderAdapter
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from harness.candidates.protocol import Rank
from harness.candidates.published.wiring import rows
from harness.case import Case

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Shard:
    """What this rank has of one micro-batch, under the names that the adapter knows."""

    input_ids: Tensor
    position_ids: Tensor
    shift_labels: Tensor
    tokens: Tensor
    # The weight of each token's loss in the batch's.
    weights: Tensor
    # A table has a mask; the adapter cuts it like every other key.
    attention_mask: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What a model is called with."""
        given = {"input_ids": self.input_ids, "position_ids": self.position_ids}
        mask = self.attention_mask
        return given if mask is None else {**given, "attention_mask": mask}


def shards(case: Case, rank: Rank, *, packed: bool = False) -> Iterator[Shard]:
    """This rank's part of each micro-batch."""
    for number, batch in enumerate(rows.micro_batches(case, rank)):
        columns = collated(batch, case, packed=packed)
        yield Shard(**sharded(columns, case, rank, number % case.sp))


def collated(batch: rows.Padded, case: Case, *, packed: bool) -> dict[str, Tensor]:
    """What a data loader yields: a multiple of sp long, every key two-dimensional."""
    columns = {
        "input_ids": batch.ids_BS,
        "position_ids": batch.positions_BS,
        "labels": batch.ids_BS.masked_fill(~batch.targets_BS, IGNORED),
        "tokens": batch.tokens_BS,
        "weights": shares(case, batch),
    }
    fill = {"input_ids": case.pad_id, "labels": IGNORED, "tokens": rows.PADDING}
    if packed:
        real_BS = batch.attended_BS.bool()
        columns = {key: column[real_BS][None] for key, column in columns.items()}
    else:
        columns |= {"position_ids": counted(batch), "attention_mask": batch.attended_BS}
    # Labels move in the adapter; what a target counts for has to move to the token before it.
    columns["weights"] = F.pad(columns["weights"][:, 1:], (0, 1))
    size = columns["input_ids"].shape[1]
    missing = -size % case.sp
    padded = {key: F.pad(x, (0, missing), value=fill.get(key, 0)) for key, x in columns.items()}
    # What pads a packed row is a document of its own; what pads a table lengthens its rows.
    tail = torch.arange(missing, device=batch.ids_BS.device)
    padded["position_ids"][:, size:] = tail if packed else tail + size
    return padded


def counted(batch: rows.Padded) -> Tensor:
    """Positions of a padded table, from each row's first token on to the end of the table."""
    first_B = batch.attended_BS.argmax(1)
    columns_S = torch.arange(batch.ids_BS.shape[1], device=batch.ids_BS.device)
    return (columns_S - first_B[:, None]).clamp(min=0)


def sharded(columns: Mapping[str, Tensor], case: Case, rank: Rank, mine: int) -> dict[str, Tensor]:
    """The columns cut by the adapter, as the sample of rank `mine`; other ranks bring zeros.

    Each rank brings the adapter a sample, and all ranks work at each sample in turn.
    """
    if rank.sp_index != mine:
        columns = {key: torch.zeros_like(column) for key, column in columns.items()}
    # A DataLoader asks no more of a dataset than a list has.
    loader: Any = DataLoader([dict(columns)], batch_size=None)  # type: ignore[arg-type]
    adapter = UlyssesSPDataLoaderAdapter(
        loader,
        sp_rank=rank.sp_index,
        sp_group=rank.sp,
        sp_world_size=case.sp,
        device=rank.device,
    )
    found = list(adapter)[mine]
    # On CPU the adapter's slices of several rows are not contiguous; their copies on a GPU are.
    return {key: column.to(rank.device).contiguous() for key, column in found.items()}


def shares(case: Case, batch: rows.Padded) -> Tensor:
    """The weight of each target in the loss of the whole batch, at the target."""
    counts_B = batch.targets_BS.sum(1, keepdim=True)
    if case.loss == "token-mean":
        share = torch.full_like(counts_B, max(rows.all_targets(case), 1)).double()
    elif case.loss == "row-mean":
        share = counts_B.clamp(min=1).double() * len(case.rows)
    else:
        share = counts_B.sum().clamp(min=1).double() * case.dp * case.micro_batches
        share = share.expand_as(counts_B)
    return batch.targets_BS / share
