"""Which rows this rank trains on: a dataset and a sampler, as in any training script."""

import hashlib
from collections.abc import Iterator, Sized
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch.utils.data import Dataset, DistributedSampler

from harness.candidates.protocol import Rank
from harness.case import Case


@dataclass(frozen=True, slots=True)
class Sample:
    """One row as a data loader would give it: real tokens only."""

    ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    side: str
    # The global numbers of its tokens; they travel through every step beside the ids.
    tokens: range


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


def my_samples(case: Case, rank: Rank) -> list[Sample]:
    """The rows of this rank's replica."""
    rows = Rows(case)
    drawn = sampler(
        rows, case.dp, rank.dp_index, shuffle=False, drop_last=False, epoch=0, seed=case.seed
    )
    return [rows[index] for index in drawn]


def split(samples: list[Sample], micro_batches: int) -> list[list[Sample]]:
    """Consecutive micro-batches, the larger ones first."""
    share, larger = divmod(len(samples), micro_batches)
    pieces, at = [], 0
    for i in range(micro_batches):
        size = share + (i < larger)
        pieces.append(samples[at : at + size])
        at += size
    return pieces
