"""What twinkle changes for a whole process, for one case only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from harness.candidates.protocol import Rank
from harness.candidates.published.twinkle.library import sharing
from harness.candidates.published.wiring.restored import restored

_released: Callable[..., Any] = sharing._get_seq_groups_from_device_mesh
# A ring takes all ranks that there are: groups of one mesh are made once.
_groups: Callable[[int, int, int], Any] = cache(
    lambda dp, sp, ring: _released(
        sharing.DeviceMesh.from_sizes(dp_size=dp * sp * ring, ulysses_size=sp * ring),
        *(sp * ring, sp, ring),
    )
)


def groups_of(rank: Rank) -> Callable[..., Any]:
    """A maker of its groups, over those that the harness has where these are enough."""

    def groups(mesh: Any, seq_size: int, sp_size: int, ring_size: int) -> Any:
        if ring_size == 1:
            return rank.sp, None, rank.sp, rank.sp_index, 0
        return _groups(mesh.world_size // seq_size, sp_size, ring_size)

    return groups


@contextmanager
def prepared(rank: Rank) -> Iterator[None]:
    """Nothing is shared yet; afterwards the process is as it was."""
    with (
        restored(),
        patch.object(sharing.SequenceParallel, "_global_inited", False),
        patch.object(sharing, "_get_seq_groups_from_device_mesh", groups_of(rank)),
    ):
        sharing.sequence_parallel.__init__()
        yield
