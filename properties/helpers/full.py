"""A disk that is full for a while."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

# A short file still fits, as on a disk that is nearly full.
FITS = 600


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow beyond a few hundred bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FITS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
