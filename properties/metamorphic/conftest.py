"""Where the subject supports nothing of what a relation is about, that is skipped."""

from collections import Counter
from collections.abc import Generator

import pytest

from properties.metamorphic.trial import unless_all_is_refused


@pytest.fixture
def refused() -> Counter[str]:
    """What was drawn and is not supported, by the reason that was given."""
    return Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    given = getattr(item, "funcargs", {})
    if not {"subject", "refused"} <= given.keys():
        return (yield)
    pool = given.get("pool", given["harness_pool"])
    with unless_all_is_refused(pool, given["subject"], given["refused"]):
        return (yield)
