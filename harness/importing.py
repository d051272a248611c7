"""What is imported stays: it is many objects, and hardly any garbage."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_a_search_for_garbage() -> Iterator[None]:
    """Meanwhile; and if something was imported, of all that is there by then for ever.

    The search costs a third of the time of importing a large library; and where a process is
    forked later, it copies the memory that all these objects lie in.
    """
    before, searched = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > before:
            gc.freeze()
        if searched:
            gc.enable()
