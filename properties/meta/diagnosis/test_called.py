"""One field says what a failure is called, and every place shows that name."""

import json
from dataclasses import replace
from pathlib import Path

from harness.candidates.published.bugs import bugs
from harness.candidates.published.library import libraries
from harness.compare import Comparison, KeyResult, Look, Verdict
from harness.failure.bundle import write_bundle
from harness.failure.signature import mark_of
from harness.judge.known import listed
from harness.report import comparison_record, explain
from harness.report.html.campaign import campaign_page
from harness.report.html.failure import failure_page
from properties.helpers.drawn import campaign, pictured

FOUND, SEEN = "window-ignored", "low-precision"
FAILURE = replace(
    pictured(),
    seen=(Look(SEEN, "nll is off by little"),),
    diagnosis=(Look(FOUND, "there is no window"),),
)


def test_what_experiments_found_is_the_name_everywhere_and_what_was_seen_is_evidence(
    tmp_path: Path,
) -> None:
    record = comparison_record(FAILURE)
    assert FAILURE.called == record["looks"][0]["name"] == FOUND
    assert record["seen"][0]["name"] == FAILURE.seen_as == SEEN
    assert "window" in record["cause"]
    kept = write_bundle(FAILURE, tmp_path)
    texts = {
        "terminal": explain(FAILURE),
        "page": failure_page(record, {}),
        "card": campaign_page(campaign(), [(record, "failure.html")]),
        "bundle": (kept / "explanation.txt").read_text(),
    }
    for place, text in texts.items():
        assert FOUND in text, place
        assert SEEN not in text, place
    assert json.loads((kept / "failure.json").read_text())["looks"][0]["name"] == FOUND


def test_without_experiments_what_was_seen_is_the_name() -> None:
    plain = replace(FAILURE, diagnosis=())
    assert plain.called == comparison_record(plain)["looks"][0]["name"] == SEEN


def test_a_replay_without_experiments_is_the_same_failure() -> None:
    assert mark_of(FAILURE) == mark_of(replace(FAILURE, diagnosis=()))


def test_what_is_listed_is_recognised_by_what_is_seen_whatever_experiments_find() -> None:
    bug = next(bug for bug in bugs(libraries()["ms_swift"]) if SEEN in bug.looks)
    failure = Comparison(
        case=bug.case,
        candidate=f"ms_swift.{bug.candidate[0]}",
        verdict=Verdict.DIVERGED,
        keys=(KeyResult("loss", 1, 1, 9.0),),
        seen=(Look(SEEN, ""),),
        diagnosis=(Look(FOUND, ""),),
    )
    found = listed(failure)
    assert found is not None
    assert found.key == bug.key
