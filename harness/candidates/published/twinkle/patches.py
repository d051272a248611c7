"""What twinkle changes for a whole process, for one case only."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from transformers import masking_utils, modeling_flash_attention_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from harness.candidates.protocol import Rank
from harness.candidates.published.twinkle.library import sharing

_released: Callable[..., Any] = sharing._get_seq_groups_from_device_mesh
# Ranks that form a ring are all there are: groups of the same mesh are made once.
_groups: Callable[[int, int, int], Any] = cache(
    lambda dp, sp, ring: _released(
        sharing.DeviceMesh.from_sizes(dp_size=dp * sp * ring, ulysses_size=sp * ring),
        *(sp * ring, sp, ring),
    )
)


def groups_of(rank: Rank) -> Callable[..., Any]:
    """Its groups, or those that the harness has where these are enough."""

    def groups(mesh: Any, seq_size: int, sp_size: int, ring_size: int) -> Any:
        if ring_size == 1:
            return rank.sp, None, rank.sp, rank.sp_index, 0
        return _groups(mesh.world_size // seq_size, sp_size, ring_size)

    return groups


@contextmanager
def restored(rank: Rank) -> Iterator[None]:
    """Afterwards the process is as it was."""
    registries = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, ALL_ATTENTION_FUNCTIONS
    changed = [
        *(vars(module) for module in (masking_utils, modeling_flash_attention_utils)),
        *(vars(registry)["_local_mapping"] for registry in registries),
        *(vars(type(registry))["_global_mapping"] for registry in registries),
    ]
    with ExitStack() as stack:
        for names in changed:
            stack.enter_context(patch.dict(names))
        stack.enter_context(patch.object(sharing.SequenceParallel, "_global_inited", False))
        stack.enter_context(
            patch.object(sharing, "_get_seq_groups_from_device_mesh", groups_of(rank))
        )
        sharing.sequence_parallel.__init__()
        yield
