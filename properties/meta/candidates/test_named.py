"""Listed bugs are diagnosed again: what known.toml says of their names was measured."""

import pytest

from harness.candidates import locate
from harness.candidates.published.bugs import bugs
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library, libraries
from harness.candidates.required import only_required
from harness.conformance import Request
from harness.conformance.pools import Pools
from harness.judge import Job, diagnosed

# On a busy machine fewer experiments fit in the usual time, and a name may be another.
SECONDS = 60.0


@pytest.mark.library
@pytest.mark.parametrize(
    "library", [each for each in libraries().values() if bugs(each)], ids=lambda each: each.name
)
def test_each_listed_bug_is_named_as_written(library: Library) -> None:
    if not Environment(library, library.pinned).installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    there = [bug for bug in bugs(library) if bug.is_in(library.pinned)]
    named = {}
    with Pools(locate(f"{library.name}.{there[0].candidate[0]}").home, Request()) as pools:
        for bug in there:
            candidate = only_required(f"{library.name}.{bug.candidate[0]}")
            session = pools.of(bug.case.ranks)
            seen = session.judge_one(Job(bug.case, locate(candidate)))
            seen = diagnosed(seen, session, SECONDS)
            named[bug.key] = seen.called
    assert named == {bug.key: bug.named for bug in there}
