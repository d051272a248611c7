"""How this project imports, and what the processes that it starts may."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# In the environment of a Python: it finds no module in the current folder, which -m and -c add.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}


@contextmanager
def without_a_search_for_garbage() -> Iterator[None]:
    """An import makes many objects and hardly any garbage.

    The search for it costs a third of the time of importing a large library.
    """
    searched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searched:
            gc.enable()
