"""A folder wires a published library, which is installed, run in its environment and judged."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from harness.candidates import locate
from harness.candidates.published.bugs import Bug, bugs
from harness.candidates.published.environment import FOLDER, Environment, NotInstalled
from harness.candidates.published.library import BadFolder, Library, Published, libraries
from harness.case import parse
from harness.cli import main
from harness.compare import Comparison, Verdict, fault_comparison
from harness.compare.measurement import KeyResult
from harness.conformance import Request, page, read
from harness.conformance.pools import Pools
from harness.conformance.stage import MOST_FAULTS, MOST_HANGS, judge_stage
from harness.judge import Job
from harness.judge.known import listed_bug
from harness.ranks.pool import NeedsOtherRanks, RankPool
from harness.trace import Fault, Kind
from properties.helpers.comparisons import comparison_with
from properties.helpers.judging import Answering
from properties.helpers.places import ROOT
from properties.helpers.stores import stored_in
from properties.helpers.toy import KNOWN, write_package

SMALL = "case/1 rows=2:11 heads=2/2 layers=1 vocab=5 sp=2 dp=1 dim=2 dtype=fp64 seed=0"


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine with a package that wires `toylib`, on which pip reaches no index."""
    folder = tmp_path_factory.mktemp("machine")
    package = write_package(folder)
    patch.syspath_prepend(package)
    patch.setenv("PYTHONPATH", str(package))
    patch.setenv(FOLDER, str(folder / "environments"))
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
    patch.setattr("harness.conformance.drawn.SPS", (2,))
    patch.setattr("harness.conformance.drawn.MOST_RANKS", 2)
    patch.setattr("harness.conformance.drawn.PROBED", 100)
    patch.setattr("harness.conformance.examined.SMOKE", 5)
    patch.setattr("harness.conformance.failures.SHRINK_SECONDS", 30.0)
    libraries.cache_clear()
    yield folder
    libraries.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toywiring"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def two_releases(machine: Path) -> Path:
    """That machine, with two releases of `toylib` installed."""
    assert main(["candidates", "install", "toy", "toy@1.1"]) == 0
    return machine


@pytest.mark.usefixtures("machine")
def test_a_folder_outside_of_the_project_is_a_candidate() -> None:
    candidate = locate("toy.step").load()
    assert candidate.name == "toy.step"
    assert candidate.supports(parse(SMALL)) is None
    assert candidate.supports(parse(f"{SMALL} loss=row-mean")) is not None
    assert "toylib" not in sys.modules, "what a candidate refuses is known without its library"
    assert locate("toy.step").home == "toy@1.0"
    assert locate("toy.step@1.1").home == "toy@1.1"


@pytest.mark.usefixtures("machine")
def test_a_missing_library_is_reported_before_any_rank_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["repro", SMALL, "--candidate", "toy.step@1.0.5"]
    assert main(arguments) == 2
    output = capsys.readouterr().err
    assert output == (
        "harness: candidate=toy: toylib 1.0.5 is not installed; run python -m harness candidates "
        "install toy@1.0.5\n"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("machine")
def test_a_release_that_does_not_exist_is_refused_with_the_error_of_pip(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["candidates", "install", "toy@9.9"]) == 2
    assert "pip could not install toylib==9.9" in capsys.readouterr().err
    assert Environment(libraries()["toy"], "9.9").installed == {}


@pytest.mark.slow
def test_an_unfinished_environment_is_made_again(machine: Path) -> None:
    environment = Environment(libraries()["toy"], "1.1")
    (environment.folder / "bin").mkdir(parents=True, exist_ok=True)
    (environment.folder / "installed.json").unlink(missing_ok=True)
    with pytest.raises(NotInstalled):
        assert environment.python
    assert environment.install() == {"toylib": "1.1"}
    assert environment.python.startswith(str(machine))


def test_a_library_that_is_torch_has_a_torch_of_its_own_unless_it_is_the_harness_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {}
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(
        "harness.candidates.published.environment.install",
        lambda _, options, wanted, __: installed.update({tuple(wanted): "--no-deps" in options}),
    )
    torch, ours = libraries()["torch_context_parallel"], version("torch")
    assert Environment(torch, ours.partition("+")[0]).install() == {"torch": ours}
    assert installed == {}
    for release in ("9.9", "newest"):
        Environment(torch, release).install()
    # Another torch needs the libraries that it was built with; a library finds torch installed.
    another = libraries()["torchtitan"]
    Environment(another, another.pinned).install()
    assert installed == {
        ("torch==9.9",): False,
        ("torch",): False,
        another.requirements: True,
    }


@pytest.mark.slow
def test_upgrading_is_an_edit_of_one_pin(two_releases: Path) -> None:
    pins = two_releases / "outside" / "toywiring" / "requirements.txt"
    before = Environment(libraries()["toy"], libraries()["toy"].pinned).folder
    pins.write_text("toylib==1.1\n")
    try:
        assert locate("toy.step").home == "toy@1.1"
        after = Environment(libraries()["toy"], libraries()["toy"].pinned)
        assert after.folder != before
        assert after.installed == {"toylib": "1.1"}
    finally:
        pins.write_text("toylib==1.0\n")


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
def test_the_list_shows_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["candidates", "list", "--json"]) == 0
    (toy,) = [
        row for row in json.loads(capsys.readouterr().out)["candidates"] if row["name"] == "toy"
    ]
    assert toy == {
        "name": "toy",
        "distribution": "toylib",
        "version": "1.0",
        "installed": True,
        "others": ["1.1"],
        "candidates": ["toy.step", "toy.crowded", "toy.twice", "toy.fussy"],
    }


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
def test_ranks_of_another_environment_refuse_a_library(harness_pool: RankPool) -> None:
    with pytest.raises(NeedsOtherRanks, match="needs ranks that run in toy@1\\.0, and these"):
        harness_pool.submit(parse(SMALL), locate("toy.step"))


@pytest.mark.slow
def test_a_step_and_its_script_run_with_the_library_of_an_environment(
    two_releases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert importlib.util.find_spec("toylib") is None
    file = two_releases / "shown.py"
    arguments = ["repro", SMALL, "--candidate", "toy.step", "--script", str(file)]
    assert main(arguments) == 1
    assert "gradient-scaled" in capsys.readouterr().out
    # A script needs the library and the harness, but not the package that wires them.
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    for release, status in (("1.0", 1), ("1.1", 0)):
        command = [Environment(libraries()["toy"], release).python, str(file)]
        run = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        assert run.returncode == status, run.stdout + run.stderr
        head = r"\ADIVERGED  candidate toy\.step\n  first   weight, row 0 .*\n  weight \[0\]: "
        assert bool(re.match(head, run.stdout)) == (status == 1)


MINE = """\
mine.yaml, for toylib 1.0
  judged     toy.step: model.mode plain
             toy.twice: model.mode plain
  left out   model.offload true: where things are
  not known  name
  listed     scaled (silent gradients): Gradients are three times too large
"""


@pytest.mark.slow
def test_the_table_separates_known_bugs_new_bugs_and_mistakes_of_a_wiring(
    two_releases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = two_releases / "out"
    stored_in(two_releases / "golden")
    goldens = ["--goldens", str(two_releases / "golden")]
    mine = two_releases / "mine.yaml"
    mine.write_text("model:\n  mode: plain\n  offload: true\nname: a run\n")
    arguments = ["conformance", "toy", "--mine", str(mine), "--cases", "8", *goldens]
    # The wiring of toy.twice is wrong at sp 1, which is a fault and no finding.
    assert main([*arguments, "--out", str(out), "--json"]) == 3
    output, log = capsys.readouterr()
    assert log.startswith(MINE)
    found = json.loads(output)["found"]
    assert list(found) == ["toy.step", "toy.twice"], "the third entry has another mode"
    step, twice = found.values()
    assert twice["wiring"] == "at sp 1 it is not plain training"
    assert list(twice["stages"]) == ["sp 1"]
    assert step["wiring"] == ""
    assert set(step["stages"]["sp 1"]["verdicts"]) <= {"EQUAL", "WITHIN", "UNSUPPORTED"}
    wrong = step["stages"]["sp 2"]
    # Cases without targets pass, since their gradients are zero.
    assert wrong["verdicts"]["KNOWN"] == wrong["known"]["scaled"] > 0
    assert step["failures"] == []
    assert wrong["unseen_by_loss"] > 0, "in the first step the loss is right"
    assert looks(step) == {"scaled": "gradient-scaled", "gone": "EQUAL"}
    assert step["stale"] == ["gone"], "it is listed, and was not seen"
    # A failure that is not listed is shrunk to the smallest case.
    (failure,) = twice["failures"]
    assert parse(failure["case"]).tokens == 2
    # A golden with a loss that it refuses is judged with another loss.
    of_goldens = step["stages"]["goldens"]["verdicts"]
    assert sum(of_goldens.values()) > 0
    assert set(of_goldens) <= {"EQUAL", "WITHIN", "KNOWN"}
    text = (out / "conformance.md").read_text()
    assert text == page(read(out))
    assert "| `toy.step` | 1.0 |" in text


@pytest.mark.long
def test_two_pools_find_what_one_finds_and_report_both_candidates(two_releases: Path) -> None:
    stored_in(two_releases / "golden")
    found, candidates, pages = [], [], []
    for pools in ("1", "2"):
        # This runs other processes, in which nothing is patched.
        arguments = [
            "toy.step",
            "toy.twice",
            "--cases",
            "8",
            "--goldens",
            str(two_releases / "golden"),
        ]
        out = str(two_releases / f"pools-{pools}")
        command = [
            sys.executable,
            "-m",
            "harness",
            "conformance",
            *arguments,
            "--out",
            out,
            "--json",
        ]
        run = subprocess.run(
            [*command, "--pools", pools], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert run.returncode == 3, run.stderr
        records = json.loads(run.stdout)["found"]
        assert [record.pop("seconds") > 0 for record in records.values()] == [True, True]
        found.append(records)
        candidates.append(sorted(re.findall(r"^toy\.\w+: ", run.stderr, re.MULTILINE)))
        pages.append({f.name: f.read_text() for f in Path(out).iterdir() if f.is_file()})
    assert found[0] == found[1]
    assert candidates == [["toy.step: ", "toy.twice: "]] * 2
    assert pages[0] == pages[1]


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
def test_a_listed_fault_skips_cases_like_it_and_an_unlisted_one_ends_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.conformance.stage.MOST_FAULTS", 1)
    # No second case is under way when the first one returns.
    monkeypatch.setattr("harness.judge.session.AHEAD", 1)
    fussy, right = parse(SMALL.replace("heads=2/2", "heads=2/1")), parse(SMALL)
    refused = replace(fussy, loss="row-mean")
    fussy_step = locate("toy.fussy").load()
    assert isinstance(fussy_step, Published)
    with Pools(locate("toy.fussy").home, Request()) as pools:
        tally = judge_stage([fussy, fussy, refused, fussy, right, right], fussy_step, pools)
        assert tally.known == {"heads": 1}
        assert tally.refused == {"heads, listed": 2, "loss=row-mean": 1}
        assert tally.verdicts["EQUAL"] + tally.verdicts["WITHIN"] == 2
        two_rows = parse(SMALL.replace("rows=2:11", "rows=2:11,2:11"))
        ended = judge_stage([two_rows, right, right], fussy_step, pools)
        assert ended.verdicts == {"FAULT": 1}


@pytest.mark.slow
@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize(("kind", "most"), [(Kind.RAISED, MOST_FAULTS), (Kind.HUNG, MOST_HANGS)])
@pytest.mark.usefixtures("two_releases")
def test_a_fault_is_repeated_a_few_times_only_and_a_hang_even_fewer(
    kind: Kind, most: int, monkeypatch: pytest.MonkeyPatch, *, is_listed: bool
) -> None:
    def faults(job: Job) -> Comparison:
        return fault_comparison(
            job.case, job.candidate.name, Fault(kind=kind, summary="as always")
        )

    step, pools = locate("toy.fussy").load(), Pools("", Request())
    assert isinstance(step, Published)
    (bug,) = (bug for bug in bugs(step.library) if bug.key == "heads")
    monkeypatch.setattr(
        "harness.conformance.stage.listed_bug", lambda _: bug if is_listed else None
    )
    monkeypatch.setattr(pools, "of", lambda ranks: Answering(RankPool(ranks), faults))
    tally = judge_stage([parse(SMALL.replace("heads=2/2", "heads=2/1"))] * 20, step, pools)
    others = {"UNSUPPORTED": 20 - most} if is_listed else {}
    assert tally.verdicts == {"FAULT": most, **others}


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
def test_a_failure_is_known_only_if_the_step_is_right_with_the_bug_mended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["repro", SMALL, "--candidate", "toy.step"]) == 1
    assert capsys.readouterr().out.startswith("KNOWN     candidate toy.step\n")
    # The weights of the second step come from wrong gradients.
    two_steps = SMALL.replace(" dtype", " steps=2 dtype")
    assert main(["repro", two_steps, "--candidate", "toy.step"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("KNOWN     candidate toy.step\n")
    assert "\n  first   embed" in output
    assert main(["repro", SMALL, "--candidate", "toy.step+scaled"]) == 0
    capsys.readouterr()
    assert main(["repro", SMALL, "--candidate", "toy.crowded"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("DIVERGED  candidate toy.crowded\n")
    assert "\n  beside  with scaled mended it is DIVERGED\n" in output
    assert "\n  and     gradient-partial: 1 of 12 gradients are wrong" in output
    assert main(["repro", SMALL, "--candidate", "toy.step+gone"]) == 2
    assert "toy has no mend of gone; it has scaled, heads" in capsys.readouterr().err


@pytest.mark.usefixtures("two_releases")
def test_a_listed_bug_excuses_its_tensors_and_in_later_steps_their_consequences() -> None:
    few_heads = SMALL.replace("heads=2/2", "heads=2/1")
    for case, entry, steps, wrong, key in (
        (SMALL, "step", 1, ("weight", "grad.head"), "scaled"),
        (SMALL, "step", 1, ("nll", "weight", "grad.head"), None),
        (SMALL, "step", 2, ("nll", "weight", "grad.head"), "scaled"),
        # This bug makes the step raise, and makes no gradient wrong.
        (few_heads, "fussy", 2, ("nll",), None),
    ):
        keys = tuple(KeyResult(name, elements=4, wrong=1, used=2.0) for name in wrong)
        comparison = comparison_with(
            case=replace(parse(case), steps=steps),
            candidate=f"toy.{entry}",
            verdict=Verdict.DIVERGED,
            keys=keys,
        )
        bug = listed_bug(comparison)
        assert (bug and bug.key) == key


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
def test_a_mend_recognises_a_bug_by_any_name_and_a_fault_needs_its_own_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_other_names(library: Library) -> list[Bug]:
        return [structs.replace(bug, looks=("segment-leak",)) for bug in bugs(library)]

    monkeypatch.setattr("harness.judge.known.bugs", with_other_names)
    few_heads = SMALL.replace("heads=2/2", "heads=2/1")
    for case, entry, verdict in (
        (SMALL, "step", "KNOWN "),
        (SMALL, "crowded", "DIVERGED "),
        (few_heads, "fussy", "FAULT "),
    ):
        main(["repro", case, "--candidate", f"toy.{entry}"])
        assert capsys.readouterr().out.startswith(verdict)


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
@pytest.mark.parametrize(
    ("known", "status"), [("pass", 0), pytest.param("fail", 1, marks=pytest.mark.long)]
)
def test_a_known_bug_is_counted_by_its_key_and_passes_only_on_request(
    known: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--candidate",
        "toy.step",
        "--sp",
        "1,2",
        "--dp",
        "1",
        "--cases",
        "20",
        "--ranks",
        "2",
    ]
    assert main(["check", *arguments, "--loss", "token-mean", "--known", known]) == status
    output = capsys.readouterr().out
    assert re.search(r"\n  toy.step: .*within \d+, known \d+, elements ", output)
    assert re.search(
        r"\ntoy.step fails as is listed of it\n +\d+  scaled https://example.org/toy/1\n", output
    )
    closing = {
        "fail": "toy.step fails as is listed of it, which passes with --known pass",
        "pass": "every case passed, but for what is listed as known",
    }
    assert output.endswith(f"\nexit status {status}: {closing[known]}\n")
    assert main(["repro", SMALL, "--candidate", "toy.step", "--known", known]) == status
    capsys.readouterr()
    assert main(["repro", SMALL, "--candidate", "toy.step"]) == 1
    output = capsys.readouterr().out
    assert output.startswith("KNOWN     candidate toy.step\n")
    assert "\n  listed  scaled https://example.org/toy/1\n  first   " in output
    # A seed that `check` passes shows no failure in `repro` either.
    assert main(["repro", "--seed", "0", *arguments, "--loss", "token-mean"]) == 1
    assert capsys.readouterr().out == "KNOWN  none of 20 cases fails\n"


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
@pytest.mark.parametrize(("known", "status"), [("pass", 0), ("fail", 1)])
def test_a_store_is_verified_in_the_requested_dtype_and_reports_known_bugs(
    known: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_in(tmp_path / "golden")
    arguments = [
        "golden",
        "verify",
        "--store",
        str(tmp_path / "golden"),
        "--candidate",
        "toy.step",
    ]
    assert main([*arguments, "--dtype", "fp32", "--sp", "1,2", "--known", known]) == status
    output = capsys.readouterr().out
    assert output.startswith("KNOWN: 4 x scaled https://example.org/toy/1\n")
    # The candidate refuses bf16 in all cases, so what was asked for is not examined.
    assert main([*arguments, "--dtype", "fp32,bf16", "--sp", "1,2", "--known", known]) == 3
    output = capsys.readouterr().out
    assert "UNSUPPORTED: 8 x dtype=bf16: too coarse for a toy\n" in output
    assert "toy.step was judged on none of 10 cases with dtype=bf16" in output


@pytest.mark.slow
@pytest.mark.usefixtures("two_releases")
def test_known_bugs_are_not_forgiven_if_no_case_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--candidate", "toy.step", "--sp", "2", "--dp", "1", "--cases", "3"]
    assert main(["check", *arguments, "--loss", "token-mean", "--known", "pass"]) == 1
    closing = "exit status 1: toy.step fails as is listed of it, and passes nothing\n"
    assert capsys.readouterr().out.endswith(closing)


def looks(record: dict[str, Any]) -> dict[str, str]:
    """Return for each listed bug what its case looks like."""
    return {key: bug["looks"] for key, bug in record["listed"].items()}


@pytest.mark.long
def test_a_sweep_shows_in_which_release_a_bug_was_fixed(two_releases: Path) -> None:
    out = two_releases / "sweep"
    arguments = ["conformance", "toy.step", "--versions", "1.0,1.1", "--cases", "6"]
    assert main([*arguments, "--out", str(out)]) == 0
    old, new = read(out)["releases"]["toy.step"].values()
    assert looks(old)["scaled"] == "gradient-scaled"
    assert looks(new)["scaled"] in ("EQUAL", "WITHIN")
    assert old["generated"]["verdicts"].keys() - new["generated"]["verdicts"].keys() == {"KNOWN"}
    assert "| 1.1 | 6/6 |" in (out / "conformance.md").read_text()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("since = ", "sinse = "), "bug 'scaled'.sinse: is not known"),
        (('since = "1.0"\n', ""), "bug 'scaled'.since: is missing"),
        (('looks = ["gradient-scaled"]', 'looks = "gradient-scaled"'), r"looks: expected `array`"),
        (("[[bug]]", "bug = 3\n[[bog]]"), "bug: expected `array`, got `int`"),
        (("rows=2:11", "rows=2:1"), "1 mask bits for 2 tokens"),
        (('golden = "none', "golden = none"), "Invalid value"),
        (('grade = "A"', 'grade = "E"'), "bug 'scaled'.grade: invalid enum value 'E'"),
        (('severity = "loud"', 'severity = "bad"'), "bug 'heads'.severity: invalid .* 'bad'"),
        (('reach = "default"', 'reach = "easy"'), "bug 'scaled'.reach: invalid .* 'easy'"),
        (('graded = "It raises."', 'graded = ""'), "bug 'heads'.graded: is empty, and grade 'B'"),
        (("toys/toylib", "toylib"), "bug 'scaled'.addressee: 'toylib' is not owner/name"),
        (("(open): g", "(ajar): g"), r"bug 'scaled'.precedents: '.*/1 \(ajar\).*' is not as"),
        (
            ('[[bug]]\nkey = "s', '[library]\nnewest_date = "May"\n[[bug]]\nkey = "s'),
            "date: 'May'",
        ),
        (('newest = "The same line."\n', ""), "bug 'scaled'.newest: is missing"),
    ],
)
def test_an_invalid_list_of_bugs_is_refused(
    change: tuple[str, str], rule: str, tmp_path: Path
) -> None:
    (tmp_path / "known.toml").write_text(KNOWN.replace(*change))
    with pytest.raises(BadFolder, match=rule):
        bugs(Library("toy", "toywiring", tmp_path))


@pytest.mark.parametrize("text", ["toylib>=1.0\n", "", "toylib\n", "toylib==1.0\nother\n"])
def test_requirements_without_exact_pins_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(BadFolder, match="is not an exact pin"):
        assert Library("toy", "toywiring", tmp_path).requirements
