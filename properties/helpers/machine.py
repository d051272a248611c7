"""A machine with a published library, and a package whose steps are its own with mistakes."""

import os
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.candidates import locate
from harness.candidates.published.environment import FOLDER, Environment
from harness.candidates.published.library import Library, libraries
from harness.compare import Comparison, Verdict
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.planted import behind

NOTHING = frozenset[str]()


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


def ranks_of(of: str, planted: ModuleType) -> Any:
    """Make the fixture `pool`: ranks for a library's own steps and for those with mistakes."""

    @pytest.fixture(scope="module")
    def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
        folder = tmp_path_factory.mktemp("machine")
        with on_a_machine(of, planted.NAME, planted.make, folder) as pool:
            yield pool

    return pool


def require_wrong(seen: Comparison, wrong: set[str], right: AbstractSet[str] = NOTHING) -> None:
    """Require that a step diverged in keys with each of these beginnings, and not in `right`."""
    assert seen.verdict is Verdict.DIVERGED, explain(seen)
    keys = {result.key for result in seen.measured.keys if result.wrong}
    assert [each for each in wrong if not any(key.startswith(each) for key in keys)] == []
    assert [key for key in keys if key.startswith(tuple(right))] == [], explain(seen)
