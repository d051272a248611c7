"""What CI runs is there and understood, and what it says of a run is what happened."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

from harness.campaign import Request
from harness.candidates.bank import STAGES
from harness.candidates.mutants import BANK
from harness.cli import build_parser
from harness.detection import Power
from harness.doctor import examine
from harness.golden.verify import Tally as Verified
from harness.report.summary import Summary, Tally

ROOT = Path(__file__).parent.parent
CI = ROOT / "ci"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())

# In the place of an interpreter: notes what it is asked for, and of that does what is in ci only.
INTERPRETER = """#!{python}
import json, os, sys

with open({notes!r}, "a") as notes:
    print(json.dumps(sys.argv[1:]), file=notes)
if sys.argv[1] == "ci/summary":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
if {fails!r} in sys.argv:
    print("one golden is damaged", file=sys.stderr)
    sys.exit(4)
"""


@dataclass(frozen=True)
class Run:
    """What a script did."""

    status: int
    said: str
    out: Path
    # What the interpreter was asked for.
    asked: list[list[str]]

    @property
    def page(self) -> str:
        return (self.out / "summary.md").read_text()


Tier = Callable[..., Run]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Runs `ci/gpu` with an interpreter that does nothing, and `fails` at what has that word."""

    def run(*steps: str, fails: str = "nothing", **environment: str) -> Run:
        notes, out = tmp_path / "notes", tmp_path / "out"
        interpreter = tmp_path / "python"
        interpreter.write_text(
            INTERPRETER.format(python=sys.executable, notes=str(notes), fails=fails)
        )
        interpreter.chmod(0o700)
        known = {**os.environ, "PYTHON": str(interpreter), "GITHUB_ACTIONS": "", **environment}
        known |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "job")}
        done = subprocess.run(
            [CI / "gpu", out, *steps], env=known, capture_output=True, text=True, check=False
        )
        asked = notes.read_text().splitlines() if notes.exists() else []
        return Run(done.returncode, done.stdout + done.stderr, out, list(map(json.loads, asked)))

    return run


def wanting(tool: str) -> str:
    found = shutil.which(tool)
    return found or pytest.skip(f"for want of {tool}")


def test_shellcheck_has_nothing_to_say_of_the_scripts() -> None:
    scripts = [file for file in CI.iterdir() if "bash" in file.read_text().partition("\n")[0]]
    assert len(scripts) > 6
    told = subprocess.run(
        [
            wanting("shellcheck"),
            "-s",
            "bash",
            "-x",
            "-P",
            "SCRIPTDIR",
            CI / "environment",
            *scripts,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout


def test_actionlint_has_nothing_to_say_of_the_workflows() -> None:
    config = ROOT / ".github" / "actionlint.yaml"
    told = subprocess.run(
        [wanting("actionlint"), "-config-file", config, *WORKFLOWS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout


def workflow_commands() -> list[list[str]]:
    """Every command of every workflow, in words, for each entry of its matrix."""
    yaml = pytest.importorskip("yaml")
    jobs = [job for file in WORKFLOWS for job in yaml.safe_load(file.read_text())["jobs"].values()]
    lines = []
    for job in jobs:
        matrix = job.get("strategy", {}).get("matrix", {"": [""]})
        ((name, entries),) = matrix.items()
        runs = "\n".join(step.get("run", "") for step in job["steps"])
        for entry in entries:
            lines += runs.replace(f"${{{{ matrix.{name} }}}}", str(entry)).splitlines()
    # Whatever else GitHub puts there is a number.
    lines = [re.sub(r"\$\{\{.*?\}\}", "1", line).partition(" > ")[0] for line in lines]
    return [shlex.split(line) for line in lines if line]


def is_understood(words: list[str], config: pytest.Config) -> bool:
    """Whether there is such a command, and it takes these options."""
    name = words[0]
    if name.startswith("ci/") and not os.access(ROOT / name, os.X_OK):
        return False
    if words[1:3] == ["-m", "harness"]:
        build_parser().parse_args(words[3:])
    elif name == "ci/check":
        build_parser().parse_args(["check", *words[1:]])
    elif name == "ci/test" or words[1:3] == ["-m", "pytest"]:
        for word in words:
            if word.startswith("--") and word not in ("--numprocesses", "--dist"):
                config.getoption(word.partition("=")[0])
            if word.startswith("properties/") and not (ROOT / word).exists():
                return False
    return True


def test_every_command_of_a_workflow_is_understood(pytestconfig: pytest.Config) -> None:
    commands = workflow_commands()
    assert {"ci/check", "ci/test", "ci/gpu", "ci/summary"} <= {words[0] for words in commands}
    assert [words for words in commands if not is_understood(words, pytestconfig)] == []


def test_the_campaign_of_a_night_is_the_one_that_is_shown() -> None:
    shown = (ROOT / "docs" / "campaigns.md").read_text()
    night = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    for what in (r"run: (ci/check .*)", r"matrix: (\{ shard.*)"):
        assert re.findall(what, shown) == re.findall(what, night) != []


def test_what_the_gpu_tier_asks_for_is_understood(tier: Tier, pytestconfig: pytest.Config) -> None:
    ran = tier(DEVICE="cuda")
    commands = [["python", *words] for words in ran.asked if words[0] == "-m"]
    assert len(commands) > 10
    assert [words for words in commands if not is_understood(words, pytestconfig)] == []
    assert ran.status == 0, ran.said


def test_the_gpu_tier_judges_300_cases_for_each_dtype_and_kernel_and_bugs_of_every_stage(
    tier: Tier,
) -> None:
    asked = [build_parser().parse_args(words[2:]) for words in tier().asked if "harness" in words]
    checks = {(o.dtype, o.kernel): o for o in asked if hasattr(o, "shard")}
    anywhere = {(dtype, "eager,sdpa") for dtype in ("bf16", "fp32", "fp64")}
    assert checks.keys() == anywhere | {("bf16,fp16", kernel) for kernel in ("varlen", "flash")}
    assert all(
        (each.cases, each.ranks, each.device) == (300, 4, "cuda") for each in checks.values()
    )
    (mutants,) = (options for options in asked if hasattr(options, "only"))
    assert {BANK[key].stage for key in mutants.only.split(",")} == set(STAGES)


def test_a_step_that_fails_is_told_and_the_others_are_run(tier: Tier) -> None:
    ran = tier(fails="golden", GITHUB_ACTIONS="true")
    assert ran.status == 4
    assert re.search(
        r"^\| golden \| \*\*4\*\* \| \d+ \| one golden is damaged \|$", ran.page, re.MULTILINE
    )
    assert re.search(r"^\| around \| 0 \|", ran.page, re.MULTILINE)
    assert "::error title=golden%3A exit 4::one golden is damaged\n" in ran.said
    assert (ran.out.parent / "job").read_text() == ran.page


def test_every_step_is_explained(tier: Tier) -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    named = re.findall(r"`(.*?)`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    noted = (tier().out / "steps.tsv").read_text().splitlines()
    assert sorted(named) == sorted(line.partition("\t")[0] for line in noted)


def test_only_steps_that_are_named_are_run_and_a_folder_that_is_there_is_left_alone(
    tier: Tier,
) -> None:
    ran = tier("around", "doctor")
    lines = (ran.out / "steps.tsv").read_text().splitlines()
    assert [line.partition("\t")[0] for line in lines] == ["doctor", "around"]
    again = tier("doctor")
    assert (again.status, again.asked) == (2, ran.asked)
    assert "is there already; name a new folder" in again.said


def test_wheels_are_brought_along_for_one_run(tier: Tier, tmp_path: Path) -> None:
    wheels, brought = tmp_path / "wheels", tmp_path / "brought"
    wheels.mkdir()
    brought.mkdir()
    with ZipFile(wheels / "flash_attn-99.0-py3-none-any.whl", "w") as wheel:
        described = "flash_attn-99.0.dist-info"
        wheel.writestr(
            f"{described}/METADATA", "Metadata-Version: 2.1\nName: flash-attn\nVersion: 99.0"
        )
        wheel.writestr(
            f"{described}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{described}/RECORD", "")
    ran = tier("packages", WHEELS=str(wheels), TMPDIR=str(brought), PYTHON=sys.executable)
    assert ran.status == 0, ran.said
    assert "flash-attn" not in (ran.out / "packages.txt").read_text()
    assert list(brought.iterdir()) == []


def test_a_job_for_slurm_has_all_nodes_but_the_first_join_it(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nmkdir -p gpu-results/7\necho "$HARNESS_TOKEN" "$@" >>notes\n')
    srun.chmod(0o700)
    (tmp_path / "ci").symlink_to(CI)
    known = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable,
        "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3",
        "SLURMD_NODENAME": "one",
    }  # fmt: skip
    subprocess.run([CI / "slurm"], env=known, check=True, capture_output=True)
    tier, *others = (tmp_path / "notes").read_text().splitlines()
    assert tier.split()[-2:] == ["ci/gpu", "gpu-results/7"]
    commands = sorted(line.partition(" -m harness ")[2] for line in others)
    check, join = (build_parser().parse_args(words.split()) for words in commands)
    assert check.endpoint == join.endpoint
    assert check.nodes == 3
    assert len({line.partition(" ")[0] for line in others} - {""}) == 1


def test_a_package_that_is_missing_or_too_old_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {"torch": "2.4.1+cu121", "flash-attn": "2.7.0"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: old.get(name) or version(name))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(CI / "packages"), run_name="__main__")
    assert str(ended.value).startswith("torch 2.4.1+cu121 is older than 2.11: bring wheels along")
    assert "not needed, and flash-attn 2.7.0 is older than 2.8" in capsys.readouterr().out


def summarize(folder: Path, **environment: str) -> str:
    known = {**os.environ, "GITHUB_ACTIONS": "", "GITHUB_STEP_SUMMARY": "", **environment}
    done = subprocess.run(
        [sys.executable, CI / "summary", folder],
        env=known,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def campaign(**verdicts: int) -> dict[str, Any]:
    """A document of `check` in which one candidate failed."""
    tally = Tally()
    tally.verdicts.update(verdicts)
    failure = {"verdict": "DIVERGED", "case": "case/1 rows=2:11", "explanation": "DIVERGED\n100%"}
    request = Request(
        candidates=("mine",), sps=(1,), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
        count=20, seed=0,
    )  # fmt: skip
    return Summary(
        request=request, ranks=1, versions={}, size=20, drawn="", of=1, shards=(1,),
        tallies={"mine": tally}, situations=tally.verdicts, cases=20, seconds=8.0,
    ).record() | {"candidates": {"mine": {**tally.record(), "failures": [failure]}}}  # fmt: skip


def test_a_campaign_is_summed_up_and_what_diverged_is_shown_and_annotated(tmp_path: Path) -> None:
    (tmp_path / "check.json").write_text(json.dumps(campaign(WITHIN=18, EQUAL=1, DIVERGED=1)))
    said = summarize(tmp_path, GITHUB_ACTIONS="true")
    assert (
        "| check |  |  | 20 cases, 2.5 cases/s: mine 1 DIVERGED, 1 EQUAL, 18 WITHIN, used 0 |"
        in said
    )
    assert "**check: DIVERGED**\n\n~~~\nDIVERGED\n100%\n~~~" in said
    assert "::error title=check%3A DIVERGED::DIVERGED%0A100%25\n" in said


SCORE = Power().record()["score"] | {"mutants": 14, "killed": 13, "named_right": 12}
VERIFIED = Verified(goldens=2, verdicts=Counter(WITHIN=9), seconds=3.0).record()


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"score": SCORE}, "13 of 14 mutants killed, 12 named right"),
        ({"score": SCORE | {"benign": 2}}, "12 named right, 0 of 2 benign variants flagged"),
        (VERIFIED, "2 goldens, 9 runs, 3.0 runs/s: 9 WITHIN"),
        (
            {"goldens": [{"change": "none"}, {"change": "drift"}]},
            "2 goldens, changes: 1 drift, 1 none",
        ),
        (
            {"recorded": ["a"], "left_out": {"b": "is big"}},
            "1 goldens recorded, left out: b is big",
        ),
    ],
)
def test_a_document_is_told_in_one_line(
    document: dict[str, Any], told: str, tmp_path: Path
) -> None:
    (tmp_path / "step.json").write_text(json.dumps(document))
    assert f"{told} |\n" in summarize(tmp_path)


def test_what_a_machine_has_and_lacks_is_told(tmp_path: Path) -> None:
    (tmp_path / "doctor.json").write_text(json.dumps(examine()))
    said = summarize(tmp_path)
    assert f"| torch {torch.__version__}; devices cpu" in said
    assert "kernels eager, sdpa" in said


def test_a_test_that_failed_is_annotated_where_it_begins(tmp_path: Path) -> None:
    suite = tmp_path / "test_mine.py"
    suite.write_text("def test_one():\n    pass\n\ndef test_two():\n    assert not 'so', 'oh'\n")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         f"--junitxml={tmp_path / 'tests.xml'}", "-o", "junit_family=xunit1", suite.name],
        cwd=tmp_path, check=False, capture_output=True, env={**os.environ, "CI": ""},
    )  # fmt: skip
    said = summarize(tmp_path, GITHUB_ACTIONS="true")
    assert "| tests |  |  | 2 tests: 1 failed, 1 passed |" in said
    assert "::error file=test_mine.py,line=4,title=test_two::AssertionError: oh" in said


def test_a_step_that_was_cut_off_says_so_and_half_a_document_is_none(tmp_path: Path) -> None:
    (tmp_path / "steps.tsv").write_text("check\t124\t600\n")
    (tmp_path / "check.json").write_text('{"candidates": {')
    (tmp_path / "check.txt").write_text("120 of 300\nharness: interrupted\n\n")
    said = summarize(tmp_path)
    assert "| check | **124** | 600 | cut off; harness: interrupted |" in said


def test_flash_attention_is_not_built_of_nothing() -> None:
    done = subprocess.run(
        [CI / "flash-attn", "nothing.tar.gz"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "nothing.tar.gz is not there; bring the .tar.gz of a release along" in done.stderr
