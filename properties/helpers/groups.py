"""A process group that consists of this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed as dist


@contextmanager
def group_of_one() -> Iterator[dist.ProcessGroup]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()
