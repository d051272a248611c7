"""Hybrid context parallelism: each row on as many ranks as its length asks for."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from megatron.core import parallel_state, utils
from megatron.core.datasets.data_schedule import HybridCPDataLoaderWrapper
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch import distributed as dist

from harness.candidates.protocol import Rank
from harness.candidates.published.megatron_core.batch import columns_of, ends_of, packed_params
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case


def batches(
    case: Case, rank: Rank, config: TransformerConfig, groups: ProcessGroupCollection, ahead: bool
) -> Iterator[Any]:
    """Return an iterator over the whole batch, whose rows the library deals to all ranks."""
    parallel_state._HYBRID_DP_CP_GROUPS = _smaller_groups(rank.world)
    packs = [_pack(batch, rank, ahead=ahead) for batch in micro_batches(case, rank)]
    dealt: Iterator[Any] = HybridCPDataLoaderWrapper(iter([packs]), config, groups)
    return dealt


def cut(row: dict[str, Tensor], _: Rank, *, ahead: bool) -> tuple[dict[str, Tensor], Any]:  # noqa: ARG001
    """Cut one row over as many ranks as its `local_cp_size` says."""
    size = row.pop("local_cp_size")
    ends = ends_of([len(row["tokens"])])
    batch = {key: column[None] for key, column in row.items()}
    batch |= {"cu_seqlens": ends[None], "local_cp_size": size}
    own_part = utils.get_batch_on_this_cp_rank(
        batch,
        is_hybrid_cp=True,
        hybrid_cp_group_func=parallel_state.get_hybrid_data_context_parallel_groups,
    )
    ranks = {"local_cp_size": int(size), "cp_group": own_part.get("hybrid_cp_group")}
    return own_part, packed_params(ends, ends, int(ends[-1]), **ranks)


def per_rank(case: Case, *, ahead: bool) -> int:
    """Return a limit of tokens per rank with which all ranks share the longest row."""
    longest, multiple = max(map(len, case.rows)) + ahead, 2 * case.ranks
    return (longest + -longest % multiple) // case.sp


def _pack(batch: Any, rank: Rank, *, ahead: bool) -> dict[str, Tensor]:
    multiple = 2 * rank.world.size()
    rows = [columns_of(*row, multiple, ahead=ahead)[0] for row in enumerate(batch.rows)]
    whole = {key: torch.cat([row[key] for row in rows]) for key in rows[0]}
    return whole | {"cu_seqlens": ends_of([len(row["tokens"]) for row in rows])}


@cache
def _smaller_groups(world: dist.ProcessGroup) -> dict[int, dist.ProcessGroup]:
    """Return the library's groups of two ranks, of four, and so on below all."""
    ranks = dist.get_process_group_ranks(world)
    groups: dict[int, dist.ProcessGroup] = parallel_state.create_hybrid_dp_cp_groups(
        dist.get_rank(), ranks, None
    )
    return groups
