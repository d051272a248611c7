"""What `ci/bench` compares with: the same step on the same ranks, and nothing else.

As a candidate (`ci/bare.py:LOOP`) it runs the native step in a loop inside a rank of the pool, on
a model built beforehand and with nobody listening. As a program under torchrun it does what
suites without a pool do for every case: start, run one case, end.
"""

import os
import sys
import time
from typing import Any

import torch
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.native import LocalDialect
from harness.case import Case, parse
from harness.reference import Decoder

REPEATS = 5


def nobody(key: str, tensor: torch.Tensor, tokens: Any = None) -> None:
    """An emit that keeps nothing."""


class Loop(LocalDialect):
    """The native step, over and over."""

    name = "bare-loop"
    _model: Decoder

    def model(self, case: Case, rank: Rank) -> Decoder:  # noqa: ARG002 - it has its own
        self._model.zero_grad()
        return self._model

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        self._model = super().model(case, rank)
        super().run(case, rank, emit)
        started = time.perf_counter()
        for _ in range(REPEATS):
            super().run(case, rank, nobody)
        seconds = (time.perf_counter() - started) / REPEATS
        emit("seconds", torch.tensor(seconds, dtype=torch.float64))


LOOP = Loop()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    index, size = dist.get_rank(), dist.get_world_size()
    # One write, so that the words of two ranks cannot mix.
    os.write(1, b"ready\n")
    if len(sys.argv) > 1:
        case = parse(sys.argv[1])
        alone = dist.new_subgroups(1)[0]
        world = dist.group.WORLD
        assert world is not None
        assert isinstance(alone, dist.ProcessGroup)
        rank = Rank(index, 0, index, torch.device("cpu"), alone, world, world)
        LocalDialect().run(case, rank, nobody)
    dist.barrier()
    dist.destroy_process_group()
    assert size == int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    main()
