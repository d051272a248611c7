"""An import makes many objects, and hardly any garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_a_search_for_garbage() -> Iterator[None]:
    """The search costs a third of the time of importing a large library."""
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()
