"""The fixture `own_pool`, for test modules that name this module in `pytest_plugins`."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.candidates import locate
from harness.engine.lot import WHOLE, Part
from harness.engine.no_ranks import NoRanks
from harness.ranks.pool import CannotStart, RankPool
from harness.report import explain_no_start


@pytest.fixture
def own_pool(harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands use the ranks of the test session, and run them in a new folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "harness.failure.bundle.read.fallback_folder", lambda: tmp_path / "elsewhere"
    )

    @contextmanager
    def opened(
        options: Any, _ranks: int, candidates: Iterable[str] = (), _part: Part = WHOLE
    ) -> Iterator[RankPool]:
        for candidate in candidates:
            harness_pool.load(locate(candidate))
        usual = harness_pool.deadlines.case
        try:
            harness_pool.deadlines.case = options.deadline
            yield harness_pool
        except CannotStart as error:
            raise NoRanks(explain_no_start(error.fault), error.fault.summary) from None
        finally:
            harness_pool.deadlines.case = usual

    for command in ("examiner", "repro"):
        monkeypatch.setattr(f"harness.commands.{command}.open_pool", opened)
