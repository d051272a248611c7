"""A fixture, for modules that name this one in `pytest_plugins`."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.ranks.pool import RankPool


@pytest.fixture
def own_pool(harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the session's ranks instead of their own, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.failure.bundle.read.elsewhere", lambda: tmp_path / "elsewhere")

    def opened(
        _options: Any, _ranks: int, candidates: Iterable[str] = ()
    ) -> AbstractContextManager[RankPool]:
        for candidate in candidates:
            harness_pool.load(candidate)
        return nullcontext(harness_pool)

    for command in ("check", "repro"):
        monkeypatch.setattr(f"harness.commands.{command}.open_pool", opened)
