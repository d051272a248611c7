"""Keep the groups that the library makes over all ranks, by mesh."""

import torch.distributed as dist
from torch.distributed import ProcessGroup

from harness.candidates.published.yunchang.library import PROCESS_GROUP, set_seq_parallel_pg

# Every rank takes part in making a group, and the process keeps it.
_made: dict[tuple[int, int], tuple[ProcessGroup, ProcessGroup]] = {}


def use(ulysses: int, ring: int) -> None:
    """Use degrees whose product is sp, as `set_seq_parallel_pg` lays them out."""
    if (ulysses, ring) not in _made:
        set_seq_parallel_pg(ulysses, ring, dist.get_rank(), dist.get_world_size())
        _made[ulysses, ring] = PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG
    PROCESS_GROUP.ULYSSES_PG, PROCESS_GROUP.RING_PG = _made[ulysses, ring]
