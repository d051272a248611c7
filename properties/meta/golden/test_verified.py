"""The results of `golden verify`: verdicts, gaps, leanings, and parts that add up."""

import io
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.against import ITSELF
from harness.candidates import locate
from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED, FAULT, PASSED, USAGE
from harness.compare import Comparison, KeyResult, unsupported_comparison
from harness.compare.budget import LEAN_LEAST
from harness.golden.table import show_verified
from harness.golden.tensors import CANDIDATE
from harness.golden.verify import GoldenJob, GoldenResults, verify
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.verdict import Verdict
from properties.helpers.comparisons import comparison_with
from properties.helpers.places import PLANTED, ROOT
from properties.helpers.stores import made_otherwise, stored_in

CASE = parse("case/1 rows=3:111 sp=2")


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        (
            [unsupported_comparison(CASE, "mine", "not on a Wednesday")] * 2,
            "every run was refused",
        ),
        ([], "no golden fits so many ranks"),
    ],
)
def test_a_verification_of_nothing_is_a_fault_with_a_reason(
    runs: list[Comparison], reason: str
) -> None:
    verified, output = GoldenResults(goldens=1), io.StringIO()
    for run in runs:
        verified.add("one", run)
    show_verified(verified, {}, Console(file=output, width=200))
    assert f"FAULT: {reason}" in output.getvalue()
    assert verified.verdict is Verdict.FAULT
    assert any(reason in gap for gap in verified.record()["unexamined"])


def test_nothing_is_reported_as_unexamined_if_a_run_was_judged() -> None:
    verified = GoldenResults(goldens=1)
    verified.add("one", Comparison(case=CASE, candidate="mine", verdict=Verdict.EQUAL))
    verified.add("two", unsupported_comparison(CASE, "mine", "not on a Wednesday"))
    assert verified.unexamined == []


def test_a_tensor_that_is_off_by_the_same_in_every_run_diverges() -> None:
    right, wrong = GoldenResults(goldens=1), GoldenResults(goldens=1)
    case = replace(CASE, dtype="bf16")
    for number in range(LEAN_LEAST):
        for verified, lean in ((right, (-1) ** number * 0.01), (wrong, 0.01)):
            key = KeyResult("grad.head", 4, 0, 0.2, slack=0.1, lean=lean)
            run = comparison_with(case=case, candidate="mine", verdict=Verdict.WITHIN, keys=(key,))
            verified.add(str(number), run)
    assert right.verdict is Verdict.WITHIN
    assert wrong.verdict is Verdict.DIVERGED
    output = io.StringIO()
    show_verified(wrong, {}, Console(file=output, width=200))
    assert "too little for one: mine: grad.head is 1.01 of the reference's" in output.getvalue()


def sent(verified: GoldenResults) -> GoldenResults:
    """Return a part as another process reads it."""
    return GoldenResults.from_part(json.loads(json.dumps(verified.part())))


def test_parts_of_a_verification_add_up_to_the_whole() -> None:
    runs = [
        comparison_with(
            case=replace(CASE, seed=seed, dtype="bf16"),
            candidate="mine",
            verdict=Verdict.DIVERGED if seed % 5 == 0 else Verdict.WITHIN,
            keys=(KeyResult("grad.head", 4, 0, 0.2, slack=0.1, lean=0.01),),
            uncompared=(f"metric.{seed % 5}",),
        )
        for seed in range(2 * LEAN_LEAST)
    ]
    runs += [
        unsupported_comparison(CASE, "mine", "no"),
        unsupported_comparison(CASE, "other", "neither"),
    ]
    known = Comparison(case=CASE, candidate="other", verdict=Verdict.KNOWN, reason="B14, listed")
    runs += [known, replace(known, against=ITSELF), replace(known, case=replace(CASE, seed=5))]
    whole, parts = GoldenResults(goldens=len(runs)), [GoldenResults(goldens=1) for _ in runs]
    for number, (run, part) in enumerate(zip(runs, parts, strict=True)):
        for each in (whole, part):
            each.ask(run.candidate, run.case)
            each.add(str(number), run)
    assert len(whole.leans) == 1
    added = sum(map(sent, parts), GoldenResults(goldens=0))
    assert added.record() == whole.record()
    assert added.part() == whole.part()
    assert whole.listed == {"B14, listed": 3}
    assert whole.against == {"plain": len(runs) - 1, "self": 1}


STORE = ["--store", str(ROOT / "golden"), "--json"]


@pytest.mark.long
def test_two_pools_give_the_same_document_in_the_same_order_as_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    documents = []
    for pools in ("1", "2"):
        words = ["--candidate", "mutants.B14", "--candidate", "native-local", "--sp", "1,2"]
        assert main(["golden", "verify", *words, *STORE, "--pools", pools]) == DIVERGED
        document = json.loads(capsys.readouterr().out)
        assert document.pop("seconds") > 0
        documents.append(document)
    assert documents[0] == documents[1]
    assert [*documents[0]["failures"]] == [*documents[1]["failures"]]
    assert len(documents[0]["failures"]) > 20


def test_verifying_recorded_goldens_on_several_pools_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_in(tmp_path / "store")
    made_otherwise(tmp_path / "store", **{CANDIDATE: "native-local"})
    assert main(["golden", "verify", "--store", str(tmp_path / "store"), "--pools", "2"]) == USAGE
    assert "--pools=2, --on=here: " in capsys.readouterr().err


def test_a_divergence_that_does_not_repeat_is_still_a_divergence(harness_pool: RankPool) -> None:
    case, name = replace(CASE, dtype="fp32", seed=78), f"{PLANTED / 'alone.py'}:NOW_AND_THEN"
    job = Job(case, locate(name), ITSELF)
    verified = verify([GoldenJob("one", job)], 1, Session(harness_pool))
    assert verified.verdict is Verdict.DIVERGED


THREE_HEADS = "case/1 rows=5:11111,4:1111 heads=3/3 layers=1 vocab=8 dim=4 sp=1"


@pytest.mark.parametrize(
    ("words", "over"),
    [([], "2, 4"), (["--sp", "1,2"], "2"), (["--sp", "1,3"], "")],
)
def test_an_sp_that_no_golden_fits_is_reported_as_unexamined(
    words: list[str],
    over: str,
    tmp_path: Path,
    harness_pool: RankPool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        "harness.commands.golden.look.open_pool", lambda *_: nullcontext(harness_pool)
    )
    store = ["--store", str(tmp_path / "store")]
    assert main(["golden", "add", "odd", THREE_HEADS, "--comment", "three heads", *store]) == 0
    verify = ["golden", "verify", *store, "--candidate", "native-local", *words]
    assert main(verify) == (FAULT if over else PASSED)
    output = capsys.readouterr().out
    assert (f"no golden can be cut over sp {over}; add one" in output) is bool(over)


def test_recorded_goldens_are_held_to_the_same_leanings_and_gaps() -> None:
    shared = [replace(CASE, seed=seed, dtype="bf16") for seed in range(LEAN_LEAST)]
    key = KeyResult("grad.head", 4, 0, 0.2, slack=0.1, lean=0.01)
    right = [
        comparison_with(case=case, candidate="mine", verdict=Verdict.WITHIN, keys=(key,))
        for case in shared
    ]
    assert GoldenResults.of({run.case.id: run for run in right}).leans
    refused = {case.id: unsupported_comparison(case, "mine", "no") for case in shared}
    assert GoldenResults.of(refused).unexamined
    alone = [replace(run, case=replace(run.case, sp=1)) for run in right[:3]]
    (why,) = GoldenResults.of({run.case.id: run for run in alone}).unexamined
    assert why.startswith("mine was judged on no case that shares a sequence")
