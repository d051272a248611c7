"""How this project imports large libraries, and how the Python processes it starts may import."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# With this variable a Python process does not import from the current folder, as -m and -c would.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}


@contextmanager
def without_a_search_for_garbage() -> Iterator[None]:
    """Disable the garbage collector inside the block, and restore it afterwards.

    An import makes many objects and hardly any garbage; the collector would take a third of the
    time of importing a large library.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
