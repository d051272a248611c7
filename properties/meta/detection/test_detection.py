"""The kill table: which mutants are killed and named, which variants flagged, and the score."""

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.against import ITSELF, PLAIN, Against
from harness.campaign.case_source import draw
from harness.campaign.request import Request
from harness.candidates.bank import Benign
from harness.candidates.own.benign import BANK as VARIANTS
from harness.candidates.own.mutants import BANK
from harness.case import Case, parse
from harness.cli import main
from harness.commands.campaign_request import read_keys
from harness.compare import Comparison, fault_comparison
from harness.detection import Score, Trial, Trier, score_here, show
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.trace import Fault, Kind
from properties.helpers.commands import HARNESS, run_to_end
from properties.helpers.judging import Answering

REQUEST = Request(
    candidates=("native-gather",),
    sps=(1, 2, 4),
    dps=(1,),
    dtypes=("fp64",),
    losses=("token-mean",),
    count=12,
    seed=0,
)
WITHOUT_A_NAME = Trial(
    key="B08", stage="batching", sentence="", cases=1, seconds=0, verdict="FAULT", expected="other"
)
TRIED = ["--cases", "3", "--ranks", "4", "--dp", "1"]


@pytest.fixture(scope="module")
def batch(harness_pool: RankPool) -> list[Case]:
    return draw(REQUEST, harness_pool.size)


def printed(score: Score) -> str:
    out = io.StringIO()
    show(score, Console(file=out, width=100))
    return out.getvalue()


@pytest.mark.slow
def test_a_mutant_is_found_named_and_scored(harness_pool: RankPool, batch: list[Case]) -> None:
    score = score_here(
        [BANK["B14"], BANK["B101"]], [], Trier(cases=batch, session=Session(harness_pool))
    )
    assert score.passed
    assert [trial.key for trial in score.mutants] == ["B14", "B101"]
    assert [trial.named for trial in score.mutants] == [
        "label-rolled-locally",
        "gradient-times-sp",
    ]
    assert all(trial.cases <= 3 for trial in score.mutants)
    assert "2 of 2 mutants killed; 2 named right; median" in printed(score)


def test_a_surviving_mutant_is_shown_and_fails_the_score(harness_pool: RankPool) -> None:
    aligned = [parse("case/1 rows=4:1111 sp=2"), parse("case/1 rows=2:11,2:11 sp=2")]
    score = score_here([BANK["B01"]], [], Trier(cases=aligned, session=Session(harness_pool)))
    assert not score.passed
    assert "mutants.B01 survives 2 cases: Every rank takes" in printed(score)


def test_ranks_that_cannot_start_kill_no_mutant_and_flag_every_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'HARNESS_SOCKET' in os.environ: sys.modules['torch'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cases = [parse("case/1 rows=4:1111 sp=2")] * 3
    with RankPool(2) as pool:
        score = score_here(
            [BANK["B14"]],
            [next(iter(VARIANTS.values()))],
            Trier(cases=cases, session=Session(pool)),
        )
    assert (score.killed, len(score.flagged)) == ([], 1)
    assert not score.passed


@pytest.mark.slow
@pytest.mark.parametrize("against", [PLAIN, ITSELF])
def test_a_fault_that_the_unchanged_step_has_too_kills_no_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, against: Against
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if 'HARNESS_SOCKET' in os.environ:\n"
        "    import torch.distributed\n"
        "    torch.distributed.all_to_all_single = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cases = [parse("case/1 rows=4:1111 sp=2")]
    with RankPool(2) as pool:
        score = score_here(
            [BANK["B14"]], [], Trier(cases=cases, session=Session(pool), against=against)
        )
    assert score.killed == []
    assert score.mutants[0].verdicts == {"FAULT": 1}
    assert not score.passed


@pytest.mark.slow
def test_after_a_fault_that_kills_no_mutant_the_trial_goes_on(
    harness_pool: RankPool, batch: list[Case]
) -> None:
    first, *others = batch
    session = Session(harness_pool)

    def faults_first(job: Job) -> Comparison:
        """Return a fault for every candidate on the first case."""
        if job.case == first:
            fault = Fault(kind=Kind.RAISED, summary="as always")
            return fault_comparison(job.case, job.candidate.name, fault)
        return session.judge_one(job)

    trier = Trier(cases=[first, *others], session=Answering(harness_pool, faults_first))
    score = score_here([BANK["B14"]], [], trier)
    (trial,) = score.mutants
    assert (trial.verdict, trial.verdicts["FAULT"]) == ("DIVERGED", 1)
    assert trial.cases > 1


@pytest.mark.slow
def test_a_wrong_name_is_shown_and_fails_the_score_and_an_unmet_need_is_kept(
    harness_pool: RankPool, batch: list[Case]
) -> None:
    misnamed = replace(BANK["B14"], anomaly="kv-repeat", needs=("dp>7", "sp>1"))
    score = score_here([misnamed], [], Trier(cases=batch, session=Session(harness_pool)))
    assert len(score.killed) == 1
    assert not score.passed
    assert "label-rolled-locally, not kv-repeat" in printed(score)
    assert score.mutants[0].unmet == ("dp>7",)


def test_a_flagged_variant_is_explained_and_fails_the_score(
    harness_pool: RankPool, batch: list[Case]
) -> None:
    wrong = Benign("wrong", BANK["B14"].candidate, "Rolls its shard.", "nothing")
    score = score_here([], [wrong], Trier(cases=batch, session=Session(harness_pool)))
    assert not score.passed
    assert "benign.wrong was flagged: Rolls its shard.\nDIVERGED" in printed(score)


def test_a_score_without_trials_does_not_pass() -> None:
    assert not Score().passed


@pytest.mark.slow
def test_a_failing_case_is_shrunk_if_the_trier_shrinks(
    harness_pool: RankPool, batch: list[Case]
) -> None:
    score = score_here(
        [BANK["B14"]],
        [],
        Trier(cases=batch, session=Session(harness_pool), shrinks=True),
    )
    case = parse(score.mutants[0].case)
    assert case.tokens <= case.sp + 2
    assert score.mutants[0].named_right


@pytest.mark.slow
def test_a_crash_does_not_change_the_next_trial(harness_pool: RankPool, batch: list[Case]) -> None:
    score = score_here(
        [BANK["B94"], BANK["B83"]], [], Trier(cases=batch, session=Session(harness_pool))
    )
    assert [trial.named for trial in score.mutants] == ["crashed", "denominator-wrong-count"]


@pytest.fixture
def own_pool(harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the session's pool instead of one of its own."""
    monkeypatch.setattr(
        "harness.commands.mutants.open_pool", lambda *_: contextlib.nullcontext(harness_pool)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_the_command_prints_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--only", "B14,zigzag", *TRIED, "--json"]) == 0
    written = capsys.readouterr()
    document = json.loads(written.out)
    assert document["passed"]
    assert document["score"]["mutants"] == document["score"]["killed"] == 1
    assert document["score"]["benign"] == 1
    assert document["mutants"][0]["named"] == "label-rolled-locally"
    assert "B14: DIVERGED at case 1, label-rolled-locally" in written.err


@pytest.mark.slow
def test_two_pools_have_the_result_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["mutants", "--only", "B14,zigzag", "--cases", "2", "--sp", "2", "--dp", "1", "--json"]
    assert main(words) == 0
    one = json.loads(capsys.readouterr().out)
    run = run_to_end(*HARNESS, *words, "--pools", "2", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    two = json.loads(run.stdout)
    for document in (one, two):
        assert document.pop("seconds") > 0
        assert document["score"].pop("median_seconds") > 0
        for trial in (*document["mutants"], *document["benign"]):
            assert trial.pop("seconds") > 0
    assert two == one
    assert one["placement"]["ranks"] == "4"


@pytest.mark.usefixtures("own_pool")
def test_a_survivor_has_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--only", "B124", *TRIED]) == 1
    assert "mutants.B124 survives 3 cases" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "B1x"], "--only=B1x: there is no such mutant or variant; near: "),
        (["--pools", "0"], "--pools=0: use auto, or a number from 1 to 64"),
        (["--cases", "0"], "--cases=0: at least one case must be examined"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mutants", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_stage_stands_for_its_mutants_and_a_key_counts_once() -> None:
    known = {"labels": ["B13", "B14"], "mutants": ["B01", "B13", "B14"], "benign": ["zigzag"]}
    assert read_keys("B14,labels", known) == ["B13", "B14"]
    assert read_keys("mutants,zigzag", known) == ["B13", "B14", "B01", "zigzag"]


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_against_self_a_mutant_that_is_wrong_at_sp_1_is_counted_as_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--against", "self", "--dtype", "fp64", *TRIED]
    assert main(["mutants", "--only", "B14,B17,zigzag", *words]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 mutants killed; 1 are wrong at sp 1 too" in text
    assert "wrong at sp 1 too: B17" in text
    # A mutant that is right at sp 1 and is not found survives, as against plain training.
    assert main(["mutants", "--only", "B124", *words]) == 1
    assert "mutants.B124 survives 3 cases" in capsys.readouterr().out
    # The right name is required against plain training only.
    assert Score(mutants=[WITHOUT_A_NAME], against="self").passed
    assert not Score(mutants=[WITHOUT_A_NAME]).passed
    # A score without a kill shows nothing, and does not pass.
    assert main(["mutants", "--only", "B17", *words]) == 1
