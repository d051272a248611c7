"""A machine with a published library, and a package whose steps are its own with mistakes."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.published.environment import FOLDER, Environment
from harness.candidates.published.library import Library, libraries
from harness.ranks.pool import RankPool
from properties.planted import behind


@contextmanager
def on_a_machine(
    of: str, planted: str, make: Callable[[Path, Library], Path], folder: Path
) -> Iterator[RankPool]:
    """While this lasts, there are ranks for the steps of a package that `make` writes."""
    library = libraries()[of]
    if not Environment(library, library.pinned).installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    with pytest.MonkeyPatch.context() as patch:
        outside = make(folder, library)
        patch.syspath_prepend(outside)
        paths = filter(None, (str(outside), os.environ.get("PYTHONPATH")))
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        libraries.cache_clear()
        wired = libraries()[planted]
        patch.setenv(FOLDER, str(behind.at_home(folder, library, wired)))
        entry = next(iter(wired.limits))
        with RankPool(2, home=locate(f"{planted}.{entry}").home, deadline=120.0) as pool:
            yield pool
    libraries.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == planted]:
        del sys.modules[name]
