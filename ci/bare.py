"""What `ci/bench.py` compares with: the same step on the same ranks, and nothing else.

As a candidate (`ci/bare.py:LOOP`) it runs the native step in a loop inside a rank of the pool, on
a model built beforehand and with nobody listening. As a program under torchrun it does what
suites without a pool do for every case: start, run one case, end.
"""

import os
import sys
import time
from pathlib import Path
from typing import ClassVar

import torch
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.case import Case, parse
from harness.reference import TORCH_DTYPES, Decoder

# A file with one case to a line.
BATCH = "HARNESS_BENCH_BATCH"


class Ready:
    """Models built beforehand; a mixin for either dialect."""

    models: ClassVar[dict[Case, Decoder]] = {}

    def model(self, case: Case, rank: Rank) -> Decoder:
        if case not in self.models:
            self.models[case] = Decoder(case, TORCH_DTYPES[case.dtype], rank.device)
        self.models[case].zero_grad()
        return self.models[case]


class Gather(Ready, GatherDialect): ...


class Local(Ready, LocalDialect): ...


class Loop(LocalDialect):
    """The native steps, case after case."""

    name = "bare-loop"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        batch = [parse(line) for line in Path(os.environ[BATCH]).read_text().splitlines()]
        dialects = (Gather(), Local())
        for each in batch:
            Ready().model(each, rank)
        dist.barrier(group=rank.world)
        started = time.perf_counter()
        for each in batch:
            for dialect in dialects:
                dialect.run(each, rank, lambda *_, **__: None)
        if rank.device.type == "cuda":
            # It is given work, and does it later.
            torch.cuda.synchronize(rank.device)
        seconds = time.perf_counter() - started
        super().run(case, rank, emit)
        emit("seconds", torch.tensor(seconds, dtype=torch.float64))


LOOP = Loop()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # One write, so that the words of two ranks cannot mix.
    os.write(1, b"ready\n")
    if len(sys.argv) > 1:
        alone, world, index = dist.new_subgroups(1)[0], dist.group.WORLD, dist.get_rank()
        assert world is not None
        assert isinstance(alone, dist.ProcessGroup)
        rank = Rank(index, 0, index, torch.device("cpu"), alone, world, world)
        LocalDialect().run(parse(sys.argv[1]), rank, lambda *_, **__: None)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
