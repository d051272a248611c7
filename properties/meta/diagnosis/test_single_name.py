"""A failure has one name, and every output shows it."""

import json
from pathlib import Path

from harness.candidates.published.bugs import bugs
from harness.candidates.published.library import libraries
from harness.compare import KeyResult, Look, Verdict
from harness.failure.bundle import write_bundle
from harness.failure.signature import mark_of
from harness.judge.known import listed_bug
from harness.report import comparison_record, explain
from harness.report.html.campaign import campaign_page
from harness.report.html.failure import failure_page
from properties.helpers.comparisons import changed, comparison_with
from properties.helpers.drawn import campaign, pictured

DIAGNOSED, SEEN = "window-ignored", "low-precision"
FAILURE = changed(
    pictured(),
    seen=(Look(SEEN, "nll is off by little"),),
    diagnosis=(Look(DIAGNOSED, "there is no window"),),
)


def test_the_name_from_experiments_is_shown_everywhere_and_the_one_from_tensors_is_not(
    tmp_path: Path,
) -> None:
    record = comparison_record(FAILURE)
    assert FAILURE.inquiry.called == record["looks"][0]["name"] == DIAGNOSED
    assert record["seen"][0]["name"] == FAILURE.inquiry.seen_as == SEEN
    assert "window" in record["cause"]
    bundle = write_bundle(FAILURE, tmp_path)
    texts = {
        "terminal": explain(FAILURE),
        "page": failure_page(record, {}),
        "card": campaign_page(campaign(), [(record, "failure.html")]),
        "bundle": (bundle / "explanation.txt").read_text(),
    }
    for output, text in texts.items():
        assert DIAGNOSED in text, output
        assert SEEN not in text, output
    assert json.loads((bundle / "failure.json").read_text())["looks"][0]["name"] == DIAGNOSED


def test_without_experiments_the_name_comes_from_tensors() -> None:
    plain = changed(FAILURE, diagnosis=())
    assert plain.inquiry.called == comparison_record(plain)["looks"][0]["name"] == SEEN


def test_a_replay_without_experiments_is_the_same_failure() -> None:
    assert mark_of(FAILURE) == mark_of(changed(FAILURE, diagnosis=()))


def test_a_listed_bug_is_recognised_by_its_tensors_whatever_experiments_find() -> None:
    bug = next(bug for bug in bugs(libraries()["ms_swift"]) if SEEN in bug.looks)
    failure = comparison_with(
        case=bug.case,
        candidate=f"ms_swift.{bug.candidate[0]}",
        verdict=Verdict.DIVERGED,
        keys=(KeyResult("loss", 1, 1, 9.0),),
        seen=(Look(SEEN, ""),),
        diagnosis=(Look(DIAGNOSED, ""),),
    )
    found = listed_bug(failure)
    assert found is not None
    assert found.key == bug.key
