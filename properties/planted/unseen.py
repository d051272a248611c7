"""Steps that exchange through files instead of torch.distributed, as others use shared memory."""

import itertools
import tempfile
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect, exchange
from harness.case import Case


class Unseen(LocalDialect):
    """A correct step, which may report how much it sends, or not."""

    name = "unseen"

    def __init__(self, *, says_so: bool) -> None:
        self._says_so = says_so

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        self._emit = emit
        self._numbers = itertools.count()
        with patch.object(exchange, "_all_to_all", self._through_files):
            super().run(case, rank, emit)

    def _through_files(self, pieces: Tensor, group: ProcessGroup) -> Tensor:
        # All ranks of a launch have the same temporary folder.
        folder, number = Path(tempfile.gettempdir()), next(self._numbers)
        own, peers = dist.get_rank(), dist.get_process_group_ranks(group)
        for peer, piece in zip(peers, pieces, strict=True):
            torch.save(piece.clone(), folder / f"{number}.{own}.{peer}")
        if self._says_so:
            self._emit("sent", torch.tensor(pieces.nbytes))
        dist.barrier(group=group)
        received = [torch.load(folder / f"{number}.{peer}.{own}") for peer in peers]
        dist.barrier(group=group)
        return torch.stack(received)


SILENT, SAYS_SO = Unseen(says_so=False), Unseen(says_so=True)
