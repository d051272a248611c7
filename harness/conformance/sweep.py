"""Several releases of one library: when a bug came, and when it went."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.candidates import load
from harness.candidates.published.known import bugs
from harness.candidates.published.library import Published
from harness.compare import Comparison
from harness.conformance.drawn import what_it_takes
from harness.conformance.examined import as_listed, can_show, of_each_sp
from harness.conformance.pools import Pools
from harness.conformance.request import Request
from harness.conformance.tally import Tally


@dataclass(slots=True)
class Release:
    """What one release of a candidate did."""

    candidate: str
    version: str
    # Generated cases.
    tally: Tally
    # What the smallest case of each listed bug came to.
    listed: dict[str, Comparison] = field(default_factory=dict)


def sweep(name: str, versions: Sequence[str], request: Request) -> list[Release]:
    """The same questions to every release, whatever is listed of it."""
    found = []
    for version in versions:
        candidate = load(f"{name}@{version}")
        assert isinstance(candidate, Published)
        with Pools(f"{candidate.library.name}@{version}", request) as pools:
            takes = what_it_takes(candidate, request.seed)
            release = Release(name, version, of_each_sp(candidate, takes, pools, request))
            for bug in bugs(candidate.library):
                if can_show(candidate, bug):
                    release.listed[bug.key] = as_listed(bug, candidate.name, pools)
            found.append(release)
    return found
