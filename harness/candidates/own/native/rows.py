"""Which rows this rank trains on, and how they become a batch, as in any training script.

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

# The number of no token.
PAD_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """One row as a data loader would give it: real tokens only."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    side: str
    # The global numbers of its tokens; they travel through every step beside the ids.
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
    """The case's rows."""

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
    """Ranks that share a sequence were handed different rows."""


def check_peers(samples: list[Sample], rank: Rank) -> None:
    """Every rank of the sequence group holds the same rows; raises before any is used."""
    seen = hashlib.blake2b(repr(samples).encode(), digest_size=7).digest()
    mine = torch.tensor([int.from_bytes(seen, "little")], device=rank.device)
    all_peers = [torch.empty_like(mine) for _ in range(rank.sp.size())]
    dist.all_gather(all_peers, mine, group=rank.sp)
    digests = [int(peer) for peer in all_peers]
    odd = [i for i, value in enumerate(digests) if value != digests[0]]
    if odd:
        raise PeersDiffer(
            f"sequence-parallel peers hold different rows: peers {odd} differ from peer 0 in "
            f"replica {rank.dp_index}; key the sampler by the data-parallel rank "
            f"({rank.dp_index}), not by the global rank ({rank.index})"
        )


def sampler(
    rows: Sized, dp: int, dp_index: int, *, shuffle: bool, drop_last: bool, epoch: int, seed: int
) -> Iterator[int]:
    """Which rows replica `dp_index` of `dp` trains on in this epoch, in order.

    Nothing else about a rank may go in: peers of one sequence must draw the same rows.
    """
    drawn: DistributedSampler[int] = DistributedSampler(
        rows,  # type: ignore[arg-type]
        num_replicas=dp,
        rank=dp_index,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
    )
    # Without it every epoch repeats the order of the first.
    drawn.set_epoch(epoch)
    return iter(drawn)


def collate(samples: list[Sample], pad_id: int, device: torch.device) -> Batch:
    """Pad rows to the longest, each on its own side."""
    longest = max(len(sample.ids) for sample in samples)

    def table(values: list[tuple[int, ...] | tuple[bool, ...] | range], fill: int) -> Tensor:
        padded = []
        for sample, row in zip(samples, values, strict=True):
            gap = [fill] * (longest - len(row))
            padded.append([*gap, *row] if sample.side == "left" else [*row, *gap])
        return torch.tensor(padded, device=device)

    lengths = [len(sample.ids) for sample in samples]
    attended_BS = table([(1,) * length for length in lengths], 0).bool()
    return Batch(
        ids_BS=table([sample.ids for sample in samples], pad_id),
        attended_BS=attended_BS,
        positions_BS=table([range(length) for length in lengths], 0),
        loss_mask_BS=table([sample.loss_mask for sample in samples], 0).bool(),
        tokens_BS=table([sample.tokens for sample in samples], PAD_TOKEN),
    )
