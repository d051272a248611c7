"""Ranks for the tests of recipes."""

from collections.abc import Iterator

import pytest

from harness.ranks.pool import RankPool


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    """Ranks that import transformers, which takes seconds."""
    with RankPool(4) as pool:
        yield pool
