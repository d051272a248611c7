"""Make the groups of a case DeepSpeed's sequence-parallel groups, for that case only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.utils import groups
from torch.distributed.nn import functional as collectives

from harness.candidates.protocol import Rank
from harness.candidates.published.deepspeed.world import start
from harness.candidates.published.wiring.gathering import all_gather
from harness.case import Case


@contextmanager
def parallel(case: Case, rank: Rank) -> Iterator[Any]:
    """Yield the groups of the case as DeepSpeed's `mpu`; None at sp 1, as DeepSpeed documents."""
    start()

    def initialize(sequence_parallel_size: int) -> None:
        assert sequence_parallel_size == rank.sp.size()
        vars(parallel_state_sp).update(
            _SEQUENCE_PARALLEL_GROUP=rank.sp, _SEQUENCE_DATA_PARALLEL_GROUP=rank.world
        )

    with (
        # DeepSpeed would make the same groups again for each case, over all ranks.
        patch.object(parallel_state_sp, "initialize_sequence_parallel", initialize),
        patch.object(parallel_state_sp, "_SEQUENCE_PARALLEL_GROUP", None),
        patch.object(parallel_state_sp, "_SEQUENCE_DATA_PARALLEL_GROUP", None),
        patch.object(groups, "mpu", None),
        patch.object(collectives, "all_gather", all_gather),
    ):
        if case.sp > 1:
            parallel_state_sp.initialize_sequence_parallel(case.sp)
            groups.mpu = parallel_state_sp
        yield groups.mpu
