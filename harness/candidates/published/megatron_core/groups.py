"""The process groups of one mesh as Megatron-Core has them: ranks share tokens and rows only."""

from functools import cache

from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import distributed as dist

from harness.candidates.protocol import Rank


@cache
def alone() -> dist.ProcessGroup:
    """A group of this rank only, which needs no other to be made."""
    group: dist.ProcessGroup = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return group


def use(rank: Rank) -> ProcessGroupCollection:
    """Use the groups of a case, also where parts of the library look for them by themselves."""
    parallel_state._TENSOR_MODEL_PARALLEL_GROUP = alone()
    parallel_state._TENSOR_MODEL_PARALLEL_GLOBAL_RANKS = [dist.get_rank()]
    parallel_state._PIPELINE_MODEL_PARALLEL_GROUP = alone()
    parallel_state._CONTEXT_PARALLEL_GROUP = rank.sp
    parallel_state._DATA_PARALLEL_GROUP = rank.dp
    parallel_state._DATA_PARALLEL_GROUP_WITH_CP = rank.world
    parallel_state._INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP = rank.world
    groups = ProcessGroupCollection(
        tp=alone(), pp=alone(), ep=alone(), embd=None, pos_embd=None, cp=rank.sp, dp=rank.dp
    )
    groups.dp_cp, groups.expt_dp = rank.world, rank.world
    return groups
