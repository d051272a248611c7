"""Pass micro-batches through DeepSpeed's data loader adapter."""

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


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of a micro-batch, by the names that the adapter uses."""

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
        """The keywords with which a model is called."""
        inputs = {"input_ids": self.input_ids, "position_ids": self.position_ids}
        mask = self.attention_mask
        return inputs if mask is None else {**inputs, "attention_mask": mask}


def shards(case: Case, rank: Rank, *, packed: bool = False) -> Iterator[Shard]:
    """Yield this rank's part of each micro-batch."""
    for number, batch in enumerate(rows.micro_batches(case, rank)):
        columns = collated(batch, case, packed=packed)
        yield Shard(**sharded(columns, case, rank, number % case.sp))


def collated(batch: rows.Padded, case: Case, *, packed: bool) -> dict[str, Tensor]:
    """Return the columns of a data loader's batch: a multiple of sp long, all two-dimensional."""
    columns = {
        "input_ids": batch.ids_BS,
        "position_ids": batch.positions_BS,
        "labels": batch.labels,
        "tokens": batch.tokens_BS,
        "weights": rows.target_weights(case, batch.targets_BS),
    }
    fill = {"input_ids": case.pad_id, "labels": rows.IGNORED, "tokens": rows.PADDING}
    if packed:
        real_BS = batch.attended_BS.bool()
        columns = {key: column[real_BS][None] for key, column in columns.items()}
    else:
        columns |= {"position_ids": table_positions(batch), "attention_mask": batch.attended_BS}
    # The adapter shifts labels; the weight of a target has to move to the token before it.
    columns["weights"] = F.pad(columns["weights"][:, 1:], (0, 1))
    size = columns["input_ids"].shape[1]
    missing = -size % case.sp
    padded = {key: F.pad(x, (0, missing), value=fill.get(key, 0)) for key, x in columns.items()}
    # Padding of a packed row is a document of its own; padding of a table lengthens its rows.
    tail = torch.arange(missing, device=batch.ids_BS.device)
    padded["position_ids"][:, size:] = tail if packed else tail + size
    return padded


def table_positions(batch: rows.Padded) -> Tensor:
    """Return positions that count from each row's first token to the end of the table."""
    first_B = batch.attended_BS.argmax(1)
    columns_S = torch.arange(batch.ids_BS.shape[1], device=batch.ids_BS.device)
    return (columns_S - first_B[:, None]).clamp(min=0)


def sharded(
    columns: Mapping[str, Tensor], case: Case, rank: Rank, bringer: int
) -> dict[str, Tensor]:
    """Return this rank's part of the columns, which only one rank brings to the adapter.

    Each rank brings a sample, and all ranks work at each sample in turn. Others bring zeros.
    """
    if rank.sp_index != bringer:
        columns = {key: torch.zeros_like(column) for key, column in columns.items()}
    # A list does as a dataset.
    loader: Any = DataLoader([dict(columns)], batch_size=None)  # type: ignore[arg-type]
    adapter = UlyssesSPDataLoaderAdapter(
        loader,
        sp_rank=rank.sp_index,
        sp_group=rank.sp,
        sp_world_size=case.sp,
        device=rank.device,
    )
    shard = list(adapter)[bringer]
    # On a CPU the adapter's slices of several rows are not contiguous; their copies on a GPU are.
    return {key: column.to(rank.device).contiguous() for key, column in shard.items()}
