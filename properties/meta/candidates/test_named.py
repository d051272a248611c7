"""A new diagnosis of each listed bug gives the name that known.toml has for it."""

import pytest

from harness.candidates import locate
from harness.candidates.published.bugs import bugs
from harness.candidates.published.environment import Environment
from harness.candidates.published.library import Library, libraries
from harness.candidates.required import only_required
from harness.conformance import Request
from harness.conformance.pools import Pools
from harness.judge import Job, add_diagnosis

# On a busy machine fewer experiments fit into the usual time, and the name could differ.
SECONDS = 60.0


@pytest.mark.library
@pytest.mark.parametrize(
    "library", [lib for lib in libraries().values() if bugs(lib)], ids=lambda lib: lib.name
)
def test_each_listed_bug_gets_the_name_in_known_toml(library: Library) -> None:
    if not Environment(library, library.pinned).installed:
        pytest.skip(f"{library.distribution} {library.pinned} is not installed")
    present = [bug for bug in bugs(library) if bug.is_in(library.pinned)]
    names = {}
    with Pools(locate(f"{library.name}.{present[0].candidate[0]}").home, Request()) as pools:
        for bug in present:
            name = f"{library.name}.{bug.candidate[0]}"
            # A step with a recipe emits no more than it must.
            candidate = name if bug.candidate[0] in library.recipes else only_required(name)
            session = pools.of(bug.case.ranks)
            comparison = session.judge_one(Job(bug.case, locate(candidate)))
            names[bug.key] = add_diagnosis(comparison, session, SECONDS).inquiry.called
    assert names == {bug.key: bug.named for bug in present}
