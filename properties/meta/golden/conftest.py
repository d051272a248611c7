"""What tests of goldens share."""

import contextlib

import pytest

from harness.ranks.pool import RankPool


@pytest.fixture
def shared_ranks(harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every command on goldens use the ranks that all tests share."""
    for module in ("edit", "look", "own", "recorded"):
        monkeypatch.setattr(
            f"harness.commands.golden.{module}.open_pool",
            lambda *_: contextlib.nullcontext(harness_pool),
        )
