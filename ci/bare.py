"""Run the same step on the same ranks without the harness, for `ci/bench.py` to compare with.

As a candidate (`ci/bare.py:LOOP`) it runs the native step in a loop inside a rank of the pool, on
models built beforehand, and discards what the step emits. As a program under torchrun it does what
a test suite without a pool does for every case: start, run one case, end.
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

# The variable that names a file with one case to a line.
BATCH = "HARNESS_BENCH_BATCH"


class CachedModels:
    """A mixin for either dialect: it builds each model once."""

    models: ClassVar[dict[Case, Decoder]] = {}

    def model(self, case: Case, rank: Rank) -> Decoder:
        if case not in self.models:
            self.models[case] = Decoder(case, TORCH_DTYPES[case.dtype], rank.device)
        self.models[case].zero_grad()
        return self.models[case]


class Gather(CachedModels, GatherDialect): ...


class Local(CachedModels, LocalDialect): ...


class Loop(LocalDialect):
    """Runs all cases of a file in both dialects, and emits how many seconds that took."""

    name = "bare-loop"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        batch = [parse(line) for line in Path(os.environ[BATCH]).read_text().splitlines()]
        dialects = (Gather(), Local())
        for batch_case in batch:
            CachedModels().model(batch_case, rank)
        dist.barrier(group=rank.world)
        started = time.perf_counter()
        for batch_case in batch:
            for dialect in dialects:
                dialect.run(batch_case, rank, lambda *_, **__: None)
        if rank.device.type == "cuda":
            # Kernels run asynchronously.
            torch.cuda.synchronize(rank.device)
        seconds = time.perf_counter() - started
        super().run(case, rank, emit)
        emit("seconds", torch.tensor(seconds, dtype=torch.float64))


LOOP = Loop()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # A single write, so that the lines of two ranks cannot mix.
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
