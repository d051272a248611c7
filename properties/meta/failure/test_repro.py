"""`repro` shows a failure again by its line, its bundle or its seed, and makes it smaller."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.against import ITSELF
from harness.campaign.case_source import draw
from harness.campaign.request import Request
from harness.candidates import locate
from harness.case import Case, parse
from harness.cli import main
from harness.commands.options import DIVERGED, FAULT, PASSED, USAGE
from harness.compare import Comparison, Look, Verdict, fault_comparison
from harness.failure.bundle import read_bundle, write_bundle
from harness.failure.bundle.origin import local_origin
from harness.failure.replay import match_bundle
from harness.failure.smallest import shrink_and_confirm
from harness.judge import Job, Session
from harness.ranks.pool import RankPool
from harness.trace import Fault, Kind
from properties.helpers.comparisons import changed, comparison_with
from properties.helpers.full import full_disk
from properties.helpers.judging import evaluate, verdict_only
from properties.helpers.places import PLANTED

pytest_plugins = ["properties.helpers.own_pool"]
pytestmark = pytest.mark.usefixtures("own_pool")

CASE = parse("case/1 rows=5:11111,2:11 heads=2 vocab=16 sp=2 dim=4")
LARGER = parse("case/1 rows=8:11011011,6:111111:left heads=4/2 sp=2 steps=2 window=3 seed=77")
DEEP = parse("case/1 rows=5:11111 heads=2 vocab=8 layers=3 sp=2 dim=4")
# It fails only with two layers or more.
NEEDS_LAYERS = "mutants.B110"
REQUEST = Request(
    candidates=("mutants.B14",), sps=(2, 1), dps=(1,), dtypes=("fp64",),
    losses=("token-mean", "micro-mean", "row-mean"), count=6, seed=4,
)  # fmt: skip
DRAWN = ["--sp", "2,1", "--dp", "1", "--dtype", "fp64", "--cases", "6", "--ranks", "4"]


@pytest.fixture(scope="module")
def diverged(harness_pool: RankPool) -> Comparison:
    return evaluate(CASE, "mutants.B14", harness_pool)


Repro = Callable[..., tuple[int, str]]


@pytest.fixture
def repro(capsys: pytest.CaptureFixture[str]) -> Repro:
    """Run the command; return its exit status, and its output or its refusal."""

    def run(*arguments: object) -> tuple[int, str]:
        status = main(["repro", *map(str, arguments)])
        printed = capsys.readouterr()
        return status, printed.err if status == USAGE else printed.out

    return run


@pytest.mark.slow
def test_a_bundle_is_found_by_path_id_and_name_and_its_failure_is_the_same(
    diverged: Comparison, repro: Repro
) -> None:
    place = write_bundle(diverged)
    for name in (CASE.id, place.name):
        status, output = repro(name)
        assert status == DIVERGED
        assert "\n  same    " in output
    status, output = repro(place)
    assert status == DIVERGED
    *_, replay, last = output.splitlines()
    assert replay == f'  replay  python -m harness repro "{CASE}" --candidate mutants.B14'
    assert last == "  same    as in the bundle: DIVERGED at labels, seen as label-rolled-locally"


@pytest.mark.slow
def test_another_failure_than_that_in_the_bundle_is_reported_as_changed(
    diverged: Comparison, repro: Repro
) -> None:
    place = write_bundle(diverged)
    status, output = repro(place, "--candidate", "mutants.B101", "--json")
    assert status == DIVERGED
    document = json.loads(output)
    assert document["candidate"] == "mutants.B101"
    found = document["again"]
    assert found["outcome"] == "changed"
    assert found["was"] == {
        "verdict": "DIVERGED",
        "where": "labels",
        "root": "label-rolled-locally",
    }
    assert found["now"]["root"] == document["looks"][0]["name"] == "gradient-times-sp"
    assert found["says"].startswith(
        "in the bundle it is DIVERGED at labels, seen as label-rolled-locally;"
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_failure_that_is_gone_passes_and_another_device_is_mentioned(
    device: str, diverged: Comparison, repro: Repro
) -> None:
    place = write_bundle(diverged, origin=local_origin(device=device))
    status, output = repro(place, "--candidate", "native-local")
    assert status == PASSED
    last = output.splitlines()[-1]
    known = "it passes now; in the bundle it is DIVERGED at labels, seen as label-rolled-locally"
    assert last.startswith(f"  gone    {known}")
    depends = "; that was on cuda, and it was not seen on cpu: it may depend on the device"
    assert last.endswith(depends) == (device == "cuda")


def test_a_failure_is_the_same_if_its_verdict_its_key_and_its_name_are(
    diverged: Comparison, tmp_path: Path
) -> None:
    bundle = read_bundle(write_bundle(diverged, tmp_path))
    assert diverged.measured.first is not None
    raised = Fault(kind=Kind.RAISED, summary="rank 1 raised")
    for other in (
        changed(diverged, first=replace(diverged.measured.first, key="nll")),
        changed(diverged, seen=(Look("kv-repeat", ""), *diverged.inquiry.seen)),
        fault_comparison(CASE, diverged.candidate, raised),
    ):
        assert match_bundle(bundle, other, "cpu").outcome == "changed"
    other_element = replace(diverged.measured.first, index=(3,), got=0.0)
    for same in (
        diverged,
        changed(diverged, first=other_element),
        changed(diverged, seen=(Look("stale-state", "it passes unless"), *diverged.inquiry.seen)),
    ):
        assert match_bundle(bundle, same, "cpu").outcome == "same"
    kept = read_bundle(write_bundle(fault_comparison(CASE, "x", raised), tmp_path))
    hung = Fault(kind=Kind.HUNG, summary="rank 1 hung")
    assert match_bundle(kept, fault_comparison(CASE, "x", hung), "cpu").outcome == "changed"
    assert match_bundle(kept, fault_comparison(CASE, "x", raised), "cpu").outcome == "same"
    passed = changed(diverged, verdict=Verdict.EQUAL, first=None, seen=())
    assert match_bundle(kept, passed, "cpu").outcome == "gone"


def test_an_id_of_several_bundles_or_of_none_is_refused_with_near_names(
    diverged: Comparison, repro: Repro
) -> None:
    for candidate in ("mutants.B14", "mutants.B15"):
        write_bundle(replace(diverged, candidate=candidate))
    status, refusal = repro(CASE.id)
    assert status == USAGE
    names = f"{CASE.id}-mutants.B14, {CASE.id}-mutants.B15"
    assert refusal == f"harness: bundle={CASE.id}: stands for {names}; name one of them\n"
    status, refusal = repro(f"{CASE.id}-mutants.B1")
    assert status == USAGE
    assert refusal.startswith(f"harness: bundle={CASE.id}-mutants.B1: ")
    assert f"nor is it in .harness/failures; near: {CASE.id}-mutants.B1" in refusal
    assert refusal.count("\n") == 1


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", ["payload.py:X", "payload:X"])
def test_code_that_a_bundle_names_runs_only_if_the_user_names_it_too(
    diverged: Comparison, repro: Repro, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    Path("payload.py").write_text("open(__file__ + '.ran', 'x').close()\n")
    place = write_bundle(replace(diverged, candidate=name))
    status, refusal = repro(place)
    assert status == USAGE
    assert refusal == (
        f"harness: bundle={place}: its candidate is {name}, whose code is not run unasked; if you "
        f"trust it, add --candidate {name}\n"
    )
    assert not Path("payload.py.ran").exists()
    status, refusal = repro(place, "--candidate", "payload.py:X")
    assert status == USAGE
    assert "has no attribute 'X'" in refusal
    assert Path("payload.py.ran").exists()


@pytest.fixture
def mine() -> str:
    """Write a file with candidates; those of the harness itself get no script."""
    Path("mine.py").write_text(
        "from harness.candidates.own.mutants import BANK\n"
        "from harness.candidates.own.native import LOCAL\n"
        'B14 = BANK["B14"].candidate\n'
    )
    return "mine.py"


@pytest.mark.slow
def test_a_seed_shows_the_failure_that_check_finds_and_writes_its_script(
    mine: str, repro: Repro, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = [*DRAWN, "--seed", "4", "--candidate", f"{mine}:B14", "--json"]
    assert main(["check", *drawn]) == DIVERGED
    (tally,) = json.loads(capsys.readouterr().out)["candidates"].values()
    words = (*drawn, "--shrink", "--script", "it.py")
    status, output = repro(*words)
    assert status == DIVERGED
    document, found = json.loads(output), tally["failures"][0]
    assert document.pop("placement")["ranks"] == "4"
    assert document == found
    kept = read_bundle(Path(document["bundle"]))
    assert kept.origin.campaign is not None
    assert kept.origin.campaign["seed"] == 4
    assert kept.origin.campaign["count"] == 6
    assert str(kept.case) == found["case"]
    assert found["case"] in Path("it.py").read_text()
    status, refusal = repro(*words)
    assert status == USAGE
    assert refusal == "harness: --script=it.py: is there already; name a new file\n"
    assert [file.name for file in Path().glob("it.py*")] == ["it.py"]


@pytest.mark.slow
def test_a_seed_stops_at_its_first_failure_and_prints_the_path_last(
    repro: Repro, harness_pool: RankPool
) -> None:
    status, output = repro(*DRAWN, "--seed", "4", "--candidate", "mutants.B14")
    assert status == DIVERGED
    (line,) = re.findall(r"^  case    (.*)$", output, re.MULTILINE)
    assert output.splitlines()[-1] == f"  bundle  .harness/failures/{parse(line).id}-mutants.B14"
    batch = draw(REQUEST, 4)
    earlier = batch[: batch.index(parse(line))]
    judged = (verdict_only(case, "mutants.B14", harness_pool) for case in earlier)
    assert all(comparison.verdict.passed for comparison in judged)


@pytest.mark.slow
def test_a_given_case_is_shrunk_kept_as_a_bundle_and_written_as_a_script(
    mine: str, repro: Repro
) -> None:
    options = ("--candidate", f"{mine}:B14", "--shrink", "--script", "it.py")
    status, output = repro(LARGER, *options)
    assert status == DIVERGED
    (line,) = re.findall(r"^  case    (.*)$", output, re.MULTILINE)
    small = parse(line)
    assert small.tokens == 2
    assert (small.steps, small.layers, small.window, small.seed) == (1, 1, None, 0)
    assert "label-rolled-locally" in output
    *_, shrunk, last = output.splitlines()
    assert re.fullmatch(rf"  shrunk  in \d+ tries from {re.escape(str(LARGER))}", shrunk)
    assert read_bundle(Path(last.removeprefix("  bundle  "))).case == small
    assert line in Path("it.py").read_text()


def test_a_failure_with_a_history_is_shrunk_after_the_same_history(
    harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(
        job: Job, session: Session, history: tuple[Case, ...] = (), ranks: int = 0
    ) -> Comparison:
        assert session.pool is harness_pool
        assert not ranks
        return comparison_with(
            case=job.case,
            candidate=job.candidate.name,
            verdict=Verdict.DIVERGED if history == (CASE,) else Verdict.EQUAL,
            against=job.against,
            before=history,
        )

    for module in ("confirm", "smallest"):
        monkeypatch.setattr(f"harness.failure.{module}.judge_on_fresh_ranks", judge)

    job = Job(LARGER, locate("native-local"), ITSELF)
    seen = judge(job, Session(harness_pool), (CASE,))
    found = shrink_and_confirm(seen, Session(harness_pool))
    assert found.finished
    assert found.smallest.against == ITSELF
    assert found.smallest.case.tokens == 1
    assert found.smallest.inquiry.before == (CASE,)


@pytest.mark.slow
def test_the_fewest_layers_that_still_fail_are_found(repro: Repro) -> None:
    status, output = repro(DEEP, "--candidate", NEEDS_LAYERS, "--bisect-layer", "--json")
    assert status == DIVERGED
    two = str(replace(DEEP, layers=2))
    assert json.loads(output)["layers"] == {"fewest": 2, "of": 3, "case": two}


@pytest.mark.slow
def test_bisecting_reports_that_every_layer_is_needed(repro: Repro) -> None:
    case = replace(DEEP, layers=2)
    status, output = repro(case, "--candidate", NEEDS_LAYERS, "--bisect-layer")
    assert status == DIVERGED
    assert output.splitlines()[-1] == "  layers  with fewer than 2 it does not fail"


@pytest.mark.slow
def test_a_full_disk_changes_no_verdict(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["repro", str(CASE), "--candidate", f"{mine}:B14", "--no-diagnose"]
    # This run leaves its supervisor and ranks, which can write; new ones could not start.
    assert main(words) == DIVERGED
    with full_disk():
        assert main([*words, "--script", "it.py", "--report", "pages"]) == DIVERGED
    errors = capsys.readouterr().err
    assert "harness: --report=pages: cannot be written: File too large\n" in errors
    assert "harness: --script=it.py: cannot be written: File too large\n" in errors
    assert not list(Path().glob("it.py*"))
    assert not list(Path("pages").iterdir())


@pytest.mark.slow
def test_repro_of_a_campaign_that_examined_too_little_is_a_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    candidate = f"{PLANTED / 'false_passes.py'}:ONLYSP1"
    assert main(["repro", *DRAWN, "--seed", "4", "--candidate", candidate]) == FAULT
    assert "; judged on none of " in capsys.readouterr().out


NOTHING = "harness: --script=it.py: there is nothing to show: no case failed\n"


@pytest.mark.slow
def test_a_case_that_passes_is_neither_shrunk_nor_bisected_nor_written(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--candidate", f"{mine}:LOCAL", "--shrink", "--script", "it.py"]
    assert main(["repro", str(DEEP), *options, "--bisect-layer"]) == PASSED
    printed = capsys.readouterr()
    assert (len(printed.out.splitlines()), printed.err) == (3, NOTHING)
    assert main(["repro", *DRAWN, "--seed", "4", *options]) == PASSED
    printed = capsys.readouterr()
    assert re.fullmatch(r"(EQUAL|WITHIN)  none of 6 cases fails\n", printed.out)
    assert printed.err == NOTHING
    assert not list(Path().glob("it.py*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([CASE, "--seed", "1"], "--seed=1: draws its cases; leave out CASE-LINE|BUNDLE"),
        (["--seed", "-1"], "--seed=-1: use a whole number"),
        ([CASE, "--sp", "4"], "--sp=4: goes with --seed only"),
        ([CASE, "--cases", "7"], "--cases=7: goes with --seed only"),
        ([CASE, "--kernel", "flash"], "--kernel=flash: goes with --seed only"),
        ([CASE, "--wrapper", "ddp"], "--wrapper=ddp: goes with --seed only"),
        ([CASE, "--script", "x"], "--script=x: native-gather is part of the harness"),
        (["--seed", "1", "--script", "x"], "--script=x: native-gather is part of the harness"),
        ([CASE, "--script", "no/x.py"], "--script=no/x.py: there is no folder no"),
        (["--seed", "1", "--candidate", "mutants.B0"], "candidate=mutants.B0: there is no B0"),
    ],
)
def test_options_that_contradict_each_other_are_refused_before_anything_runs(
    words: list[object], message: str, repro: Repro, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.failure.replay.run_history", lambda *_: pytest.fail("it was run"))
    status, refusal = repro(*words)
    assert status == USAGE
    assert refusal.startswith(f"harness: {message}")
    assert refusal.count("\n") == 1
