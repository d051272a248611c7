"""Ranks for the tests of recipes."""

from collections.abc import Iterator

import pytest

from harness.plugin.placement import place
from harness.ranks.pool import RankPool


@pytest.fixture(scope="module")
def pool(pytestconfig: pytest.Config) -> Iterator[RankPool]:
    """Ranks that import transformers, which takes seconds."""
    with RankPool(4, place(pytestconfig, 4)) as pool:
        yield pool
