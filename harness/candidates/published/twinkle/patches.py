"""Limit to one case what twinkle changes for a whole process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from torch.distributed import ProcessGroup

from harness.candidates.published.twinkle.library import sharing
from harness.candidates.published.wiring.restored import restored

_released: Callable[..., Any] = sharing._get_seq_groups_from_device_mesh
# Kept by mesh: a ring spans all ranks of the process group, and its groups last.
_groups: Callable[[int, int, int], Any] = cache(
    lambda dp, sp, ring: _released(
        sharing.DeviceMesh.from_sizes(dp_size=dp * sp * ring, ulysses_size=sp * ring),
        *(sp * ring, sp, ring),
    )
)


def groups_maker(group: ProcessGroup) -> Callable[..., Any]:
    """Return a maker of its groups, which uses the harness's group where that is enough."""

    def groups(mesh: Any, seq_size: int, sp_size: int, ring_size: int) -> Any:
        if ring_size == 1:
            return group, None, group, group.rank(), 0
        return _groups(mesh.world_size // seq_size, sp_size, ring_size)

    return groups


@contextmanager
def prepared(group: ProcessGroup) -> Iterator[None]:
    """Reset the library's state of sharing; at the end the process is as it was.

    The ranks of a sequence are those of the group.
    """
    with (
        restored(),
        patch.object(sharing.SequenceParallel, "_global_inited", False),
        patch.object(sharing, "_get_seq_groups_from_device_mesh", groups_maker(group)),
    ):
        sharing.sequence_parallel.__init__()
        yield
