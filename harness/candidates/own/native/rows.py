"""The rows that a rank trains on, and how they become a padded batch.

Legend: B rows, S longest row.
"""

import hashlib
from collections.abc import Iterator, Sized
from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist
from torch.utils.data import Dataset, DistributedSampler

from harness.candidates.protocol import Rank
from harness.case import Case

# The token number of padding.
PAD_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """One row as a data loader gives it, without padding."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    side: str
    # The numbers of its tokens in the whole case; every step carries them along with the ids.
    tokens: range


@dataclass(frozen=True, slots=True)
class Batch:
    """A padded micro-batch."""

    ids_BS: Tensor
    attended_BS: Tensor
    positions_BS: Tensor
    loss_mask_BS: Tensor
    tokens_BS: Tensor


class Rows(Dataset[Sample]):
    """The rows of a case, as a torch data set."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __len__(self) -> int:
        return len(self.case.rows)

    def __getitem__(self, index: int) -> Sample:
        row, first = self.case.rows[index], self.case.offsets[index]
        return Sample(
            ids=self.case.ids_of(index),
            loss_mask=tuple(bit == "1" for bit in row.mask),
            side=row.side,
            tokens=range(first, first + len(row)),
        )


class PeersDiffer(RuntimeError):
    """Ranks that share a sequence hold different rows."""


def check_peers(samples: list[Sample], rank: Rank) -> None:
    """Raise `PeersDiffer` unless all ranks that share the sequence hold the same rows."""
    digest = hashlib.blake2b(repr(samples).encode(), digest_size=7).digest()
    own = torch.tensor([int.from_bytes(digest, "little")], device=rank.device)
    gathered = [torch.empty_like(own) for _ in range(rank.sp.size())]
    dist.all_gather(gathered, own, group=rank.sp)
    digests = [int(peer) for peer in gathered]
    different = [i for i, value in enumerate(digests) if value != digests[0]]
    if different:
        raise PeersDiffer(
            f"sequence-parallel peers hold different rows: peers {different} differ from peer 0 "
            f"in replica {rank.dp_index}; key the sampler by the data-parallel rank "
            f"({rank.dp_index}), not by the global rank ({rank.index})"
        )


def sampler(
    rows: Sized, dp: int, dp_index: int, *, shuffle: bool, drop_last: bool, epoch: int, seed: int
) -> Iterator[int]:
    """Draw the rows that replica `dp_index` of `dp` trains on in this epoch, in order.

    Nothing else may depend on the rank, since peers of one sequence must draw the same rows.
    """
    drawn: DistributedSampler[int] = DistributedSampler(
        rows,  # type: ignore[arg-type]
        num_replicas=dp,
        rank=dp_index,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
    )
    # Without this, every epoch repeats the order of the first.
    drawn.set_epoch(epoch)
    return iter(drawn)


def collate(samples: list[Sample], pad_id: int, device: torch.device) -> Batch:
    """Pad all rows to the length of the longest, each on its own side."""
    longest = max(len(sample.ids) for sample in samples)

    def pad(values: list[tuple[int, ...] | tuple[bool, ...] | range], fill: int) -> Tensor:
        padded = []
        for sample, row in zip(samples, values, strict=True):
            gap = [fill] * (longest - len(row))
            padded.append([*gap, *row] if sample.side == "left" else [*row, *gap])
        return torch.tensor(padded, device=device)

    lengths = [len(sample.ids) for sample in samples]
    attended_BS = pad([(1,) * length for length in lengths], 0).bool()
    return Batch(
        ids_BS=pad([sample.ids for sample in samples], pad_id),
        attended_BS=attended_BS,
        positions_BS=pad([range(length) for length in lengths], 0),
        loss_mask_BS=pad([sample.loss_mask for sample in samples], 0).bool(),
        tokens_BS=pad([sample.tokens for sample in samples], PAD_TOKEN),
    )
