"""A step that packs rows passes, and faults that only such a step has are named."""

import inspect
import re

import pytest

from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import diagnosed, evaluate_all
from properties.helpers.places import PLANTED, ROOT
from properties.meta.recipes.test_recipes import drawn
from properties.planted import packed


def named(name: str) -> str:
    return f"{PLANTED / 'packed.py'}:{name}"


def test_a_step_that_packs_rows_passes(pool: RankPool) -> None:
    for comparison in evaluate_all(((case, named("right")) for case in drawn("", 6)), pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
def test_a_label_across_rows_shows_only_with_the_lines_of_the_page(pool: RankPool) -> None:
    lines = inspect.getsource(packed.collated).splitlines()[2:]
    page = (ROOT / "docs/your-step.md").read_text()
    assert lines[0].strip() in page
    assert re.search(r"torch.where\(.*?\)", lines[1])[0] in page  # type: ignore[index]
    cases = drawn("", 8)
    for name, is_right in (
        ("right_if_collated", True),
        ("over_row_ends_unseen", True),
        ("over_row_ends_seen", False),
    ):
        seen = evaluate_all(((case, named(name)) for case in cases), pool)
        assert all(comparison.verdict.passed for comparison in seen) == is_right, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "anomaly", "how"),
    [
        ("rows_leak", "segment-leak", "a row sees the rows before it in the packed stream"),
        (
            "advantages_uncut",
            "column-misplaced",
            "advantages is spread over the packed stream, in front of targets, and each rank has",
        ),
    ],
)
def test_what_goes_wrong_with_it_is_named_and_no_log_is_blamed(
    fault: str, anomaly: str, how: str, pool: RankPool
) -> None:
    comparisons = evaluate_all(((case, named(fault)) for case in drawn("", 20)), pool)
    failure = next(seen for seen in comparisons if seen.verdict.failed)
    assert failure.verdict is Verdict.DIVERGED
    found = diagnosed(failure, pool).inquiry
    assert found.called == anomaly
    assert found.looks[0].why.startswith(how)
    assert "loss-misreported" not in [look.name for look in (*found.looks, *found.seen)]
