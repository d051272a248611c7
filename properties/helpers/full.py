"""A disk that is full for some time."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

# A short file still fits, as on a disk that is nearly full.
FITS = 600


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file of this process grow beyond a few hundred bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FITS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
