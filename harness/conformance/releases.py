"""Several releases of one library: when a bug came, and when it went."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.candidates import locate
from harness.candidates.published.bugs import bugs
from harness.candidates.published.library import Published
from harness.compare import Comparison
from harness.conformance.drawn import by_sp, what_it_takes
from harness.conformance.examined import as_listed, can_show
from harness.conformance.pools import Pools
from harness.conformance.request import Request
from harness.conformance.stage import Stage, stage_of


@dataclass(slots=True)
class Release:
    """What one release of a candidate did."""

    candidate: str
    version: str
    # Generated cases, of every sp.
    generated: Stage
    # What the smallest case of each listed bug came to.
    listed: dict[str, Comparison] = field(default_factory=dict)


def sweep(name: str, versions: Sequence[str], request: Request) -> list[Release]:
    """Ask every release the same questions, whatever is listed of it."""
    releases = []
    for version in versions:
        named = locate(f"{name}@{version}")
        candidate = named.load()
        assert isinstance(candidate, Published)
        with Pools(named.home, request) as pools:
            takes = what_it_takes(candidate, request.seed)
            asked = (case for _, cases in by_sp(candidate, takes, request) for case in cases)
            release = Release(name, version, stage_of(asked, candidate, pools))
            for bug in bugs(candidate.library):
                if can_show(candidate, bug):
                    release.listed[bug.key] = as_listed(bug, named, pools)
            releases.append(release)
    return releases
