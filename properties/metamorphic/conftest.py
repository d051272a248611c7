"""Skip a relation if the subject supports none of its cases."""

from collections import Counter
from collections.abc import Generator

import pytest

from properties.metamorphic.trial import unless_all_is_refused


@pytest.fixture
def refused() -> Counter[str]:
    """How many drawn cases the subject does not support, by its reason."""
    return Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    fixtures = getattr(item, "funcargs", {})
    if not {"subject", "refused"} <= fixtures.keys():
        return (yield)
    pool = fixtures.get("pool", fixtures["harness_pool"])
    with unless_all_is_refused(pool, fixtures["subject"], fixtures["refused"]):
        return (yield)
