"""Megatron-Core's process groups for a case: ranks share only tokens and rows."""

from functools import cache

from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import distributed as dist

from harness.candidates.protocol import Rank


@cache
def alone() -> dist.ProcessGroup:
    """Return a group of this rank only, which is made without other ranks."""
    group: dist.ProcessGroup = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return group


def use(rank: Rank) -> ProcessGroupCollection:
    """Return the groups of a case, and set them where the library itself looks for groups."""
    parallel_state._TENSOR_MODEL_PARALLEL_GROUP = alone()
    parallel_state._TENSOR_MODEL_PARALLEL_GLOBAL_RANKS = [dist.get_rank()]
    parallel_state._PIPELINE_MODEL_PARALLEL_GROUP = alone()
    parallel_state._CONTEXT_PARALLEL_GROUP = rank.sp
    parallel_state._DATA_PARALLEL_GROUP = rank.dp
    parallel_state._DATA_PARALLEL_GROUP_WITH_CP = rank.world
    parallel_state._DATA_PARALLEL_GROUP_WITH_CP_WITH_GTP_REMAT = rank.world
    parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP = rank.world
    groups = ProcessGroupCollection(
        tp=alone(), pp=alone(), ep=alone(), embd=None, pos_embd=None, cp=rank.sp, dp=rank.dp
    )
    groups.dp_cp, groups.expt_dp = rank.world, rank.world
    return groups
