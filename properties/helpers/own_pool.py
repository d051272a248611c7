"""A fixture, for modules that name this one in `pytest_plugins`."""

import contextlib
from pathlib import Path

import pytest

from harness.ranks.pool import RankPool


@pytest.fixture
def own_pool(harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the session's ranks instead of their own, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.failure.bundle.read.elsewhere", lambda: tmp_path / "elsewhere")
    for command in ("check", "repro"):
        monkeypatch.setattr(
            f"harness.commands.{command}.open_pool",
            lambda *_: contextlib.nullcontext(harness_pool),
        )
