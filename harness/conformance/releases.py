"""Judge several releases of one library, to see when a bug came and when it went."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.candidates import locate
from harness.candidates.published.bugs import bugs
from harness.candidates.published.library import Published
from harness.compare import Comparison
from harness.conformance.drawn import generated_by_sp, supported_values
from harness.conformance.examined import can_show, judge_listed_bug
from harness.conformance.pools import Pools
from harness.conformance.request import Request
from harness.conformance.stage import Stage, judge_stage


@dataclass(slots=True)
class Release:
    """The findings for one release of a candidate."""

    candidate: str
    version: str
    # The generated cases of every sp.
    generated: Stage
    # The comparison of the smallest case of each listed bug.
    listed: dict[str, Comparison] = field(default_factory=dict)


def sweep(name: str, versions: Sequence[str], request: Request) -> list[Release]:
    """Judge every release on equal cases, and on all listed bugs, also those of other releases."""
    releases = []
    for version in versions:
        named = locate(f"{name}@{version}")
        candidate = named.load()
        assert isinstance(candidate, Published)
        with Pools(named.home, request) as pools:
            takes = supported_values(candidate, request)
            asked = (
                case for _, cases in generated_by_sp(candidate, takes, request) for case in cases
            )
            release = Release(name, version, judge_stage(asked, candidate, pools))
            for bug in bugs(candidate.library):
                if can_show(candidate, bug):
                    release.listed[bug.key] = judge_listed_bug(bug, named, pools)
            releases.append(release)
    return releases
