"""The scripts and workflows of CI: their commands are valid, and a failed step stops no other."""

import json
import os
import re
import runpy
import shlex
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest
from tier.shares import FEWEST
from tier.steps import PLANS, STEPS

from harness.candidates.bank import STAGES
from harness.candidates.own.mutants import BANK
from harness.cli import read
from properties.helpers.commands import options_of, run_to_end
from properties.helpers.places import ROOT

CI = ROOT / "ci"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())

# Stands in for an interpreter: it runs the tier itself, and only notes the commands of its steps.
INTERPRETER = """#!{python}
import json, os, sys

if sys.argv[1] == "ci/gpu.py":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with open({notes!r}, "a") as notes:
    print(json.dumps(sys.argv[1:]), file=notes)
if {fails!r} in sys.argv:
    print("one golden is damaged", file=sys.stderr)
    sys.exit(4)
"""


# The values of steps in a run without further options.
VALUES = {
    "device": "cuda",
    "out": "out",
    "deadline": "30",
    "cases": "300",
    "limit": "192",
    "require": "--harness-require=cuda",
}


@dataclass(frozen=True)
class Run:
    """A finished run of a script."""

    status: int
    output: str
    out: Path
    # The commands that the interpreter got.
    commands: list[list[str]]

    @property
    def steps(self) -> list[str]:
        lines = (self.out / "steps.tsv").read_text().splitlines()
        return [line.partition("\t")[0] for line in lines]

    @property
    def page(self) -> str:
        return (self.out / "summary.md").read_text()


Tier = Callable[..., Run]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Run `ci/gpu` with an interpreter that does nothing, and fails if a command has this word."""

    def run(*steps: str, fails: str = "nothing", **environment: str) -> Run:
        notes, out = tmp_path / "notes", tmp_path / "out"
        interpreter = tmp_path / "python"
        interpreter.write_text(
            INTERPRETER.format(python=sys.executable, notes=str(notes), fails=fails)
        )
        interpreter.chmod(0o700)
        variables = {"PYTHON": str(interpreter), "GITHUB_ACTIONS": "", **environment}
        variables["GITHUB_STEP_SUMMARY"] = str(tmp_path / "job")
        done = run_to_end(CI / "gpu", out, *steps, cwd=ROOT, **variables)
        lines = notes.read_text().splitlines() if notes.exists() else []
        return Run(done.returncode, done.stdout + done.stderr, out, list(map(json.loads, lines)))

    return run


FILES = [file for file in CI.iterdir() if file.is_file()]
SCRIPTS = [file for file in FILES if "bash" in file.read_text().partition("\n")[0]]
LINTERS: dict[str, tuple[str | Path, ...]] = {
    "shellcheck": ("-s", "bash", "-x", "-P", "SCRIPTDIR", CI / "environment", *SCRIPTS),
    "actionlint": ("-config-file", ROOT / ".github" / "actionlint.yaml", *WORKFLOWS),
}


@pytest.mark.parametrize("tool", LINTERS)
def test_linters_find_nothing_in_scripts_and_workflows(tool: str) -> None:
    assert len(SCRIPTS) > 6
    done = run_to_end(shutil.which(tool) or pytest.skip(f"for want of {tool}"), *LINTERS[tool])
    assert done.returncode == 0, done.stdout


def test_all_python_code_in_ci_is_in_python_files() -> None:
    others = [file for file in FILES if file.suffix != ".py"]
    assert [file for file in others if re.search(r"\A.*python|python.*<<", file.read_text())] == []


def workflow_commands() -> list[list[str]]:
    """Return the words of every command of every workflow, for each entry of its matrix."""
    yaml = pytest.importorskip("yaml")
    jobs = [job for file in WORKFLOWS for job in yaml.safe_load(file.read_text())["jobs"].values()]
    lines = []
    for job in jobs:
        matrix = job.get("strategy", {}).get("matrix", {"": [""]})
        ((name, entries),) = matrix.items()
        runs = "\n".join(step.get("run", "") for step in job["steps"])
        for entry in entries:
            lines += runs.replace(f"${{{{ matrix.{name} }}}}", str(entry)).splitlines()
    # Every other expression of GitHub stands for a number.
    lines = [re.sub(r"\$\{\{.*?\}\}", "1", line).partition(" > ")[0] for line in lines]
    return [shlex.split(line) for line in lines if line]


def is_valid(words: list[str], config: pytest.Config) -> bool:
    """Return whether the command exists; a bad option of the harness raises `UsageError`."""
    name = words[0]
    if name.startswith("ci/") and not os.access(ROOT / name, os.X_OK):
        return False
    if words[1:3] == ["-m", "harness"]:
        read(words[3:])
    elif words[1:2] == ["ci/tier/probe.py"]:
        read(["check", *words[2:]])
    elif name == "python" and words[1].startswith("ci/"):
        return (ROOT / words[1]).is_file()
    elif name == "ci/check":
        read(["check", *words[1:]])
    elif name == "ci/test" or words[1:3] == ["-m", "pytest"]:
        for word in words:
            if word.startswith("--") and word not in ("--numprocesses", "--dist"):
                config.getoption(word.partition("=")[0])
            if word.startswith("properties/") and not (ROOT / word).exists():
                return False
    return True


def test_every_command_of_a_workflow_is_valid(pytestconfig: pytest.Config) -> None:
    commands = workflow_commands()
    assert {"ci/check", "ci/test", "ci/gpu", "ci/summary.py"} <= {words[0] for words in commands}
    assert [words for words in commands if not is_valid(words, pytestconfig)] == []


def test_the_matrix_of_the_page_is_that_of_the_nightly_workflow() -> None:
    page = (ROOT / "docs" / "campaigns.md").read_text()
    workflow = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    for pattern in (r"matrix: (\{ shard.*)", r" (options: --cases.*)", r" (shard: \$.*)"):
        assert re.findall(pattern, page) == re.findall(pattern, workflow) != []


def test_every_command_of_the_gpu_tier_is_valid(pytestconfig: pytest.Config) -> None:
    commands = [["python", *step.command(**VALUES)] for step in STEPS]
    assert [words for words in commands if not is_valid(words, pytestconfig)] == []


def test_the_gpu_tier_judges_each_dtype_and_kernel_and_a_bug_of_every_stage() -> None:
    commands = [step.command(**VALUES) for step in STEPS]
    options = [options_of(*words[2:]) for words in commands if "harness" in words]
    checks = {(o.dtype, o.kernel): o for o in options if hasattr(o, "shard") and o.cases > 20}
    on_any_device = {((dtype,), ("eager", "sdpa")) for dtype in ("bf16", "fp16", "fp32", "fp64")}
    assert checks.keys() == on_any_device | {
        (("bf16", "fp16"), (kernel,)) for kernel in ("varlen", "flash")
    }
    assert all(
        (check.cases, check.ranks, check.device) == (300, 4, "cuda") for check in checks.values()
    )
    (mutants,) = (of_step for of_step in options if hasattr(of_step, "only"))
    assert {BANK[key].stage for key in mutants.only.split(",")} == set(STAGES)


@pytest.mark.slow
def test_a_step_that_fails_is_reported_and_the_others_run(tier: Tier) -> None:
    run = tier(fails="golden", GITHUB_ACTIONS="true")
    assert run.status == 4
    # Every step ran but the one that needs another NCCL; `-c` looks for an optional module.
    assert [words for words in run.commands if words[0] != "-c"] == [
        step.command(**VALUES | {"out": str(run.out)}) for step in STEPS if not step.nccl
    ]
    assert "| nccl-shared | left out |  | no other NCCL was brought along" in run.page
    assert re.search(
        r"^\| golden \| \*\*4\*\* \| \d+ \| one golden is damaged \|$", run.page, re.MULTILINE
    )
    assert re.search(r"^\| around \| 0 \|", run.page, re.MULTILINE)
    assert "::error title=golden%3A exit 4::one golden is damaged\n" in run.output
    assert (run.out.parent / "job").read_text() == run.page


def test_an_existing_folder_an_unknown_step_an_unknown_device_and_no_number_are_refused(
    tier: Tier, tmp_path: Path
) -> None:
    for word, variables, why in (
        ("zeroth", {"DEVICE": "cpu"}, "zeroth: is no step and no plan"),
        ("doctor", {"DEVICE": "tpu"}, "DEVICE=tpu: use one of cuda, cpu, pretend"),
        ("doctor", {"CASES": "few"}, "CASES=few: is no whole number"),
    ):
        refused = tier("around", word, **variables)
        assert (refused.status, refused.commands) == (2, [])
        assert why in refused.output
    (tmp_path / "out").mkdir()
    refused = tier("doctor")
    assert (refused.status, refused.commands) == (2, [])
    assert "is there already; name a new folder" in refused.output


@pytest.mark.slow
def test_a_plan_with_a_limit_runs_fewer_cases_and_writes_its_archive_where_asked(
    tier: Tier, tmp_path: Path
) -> None:
    run = tier("second", "--limit", "100", "--archive", str(tmp_path / "all.tar.gz"))
    assert run.status == 0, run.output
    assert run.steps == ["probe", *PLANS["second"]]
    with tarfile.open(tmp_path / "all.tar.gz") as tar:
        assert {"summary.md", "steps.tsv"} <= set(tar.getnames())
    (words,) = (words for words in run.commands if "fp64" in words)
    assert words[words.index("--cases") + 1] == str(FEWEST)


def test_every_step_and_plan_is_listed() -> None:
    listed = run_to_end(CI / "gpu", "--list", PYTHON=sys.executable).stdout
    assert all(re.search(rf"^{name} ", listed, re.MULTILINE) for name in PLANS)
    assert all(re.search(rf"^{step.name} .*{step.shows}", listed, re.MULTILINE) for step in STEPS)


@pytest.mark.slow
def test_wheels_are_unpacked_for_one_run_only(tier: Tier, tmp_path: Path) -> None:
    wheels, temporary = tmp_path / "wheels", tmp_path / "temporary"
    wheels.mkdir()
    temporary.mkdir()
    with ZipFile(wheels / "flash_attn-99.0-py3-none-any.whl", "w") as wheel:
        info = "flash_attn-99.0.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: flash-attn\nVersion: 99.0"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")
    run = tier("packages", WHEELS=str(wheels), TMPDIR=str(temporary), PYTHON=sys.executable)
    assert run.status == 0, run.output
    assert "flash-attn" not in (run.out / "packages.txt").read_text()
    assert list(temporary.iterdir()) == []


def test_the_slurm_job_starts_ranks_on_all_nodes_with_torchrun(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text('#!/bin/sh\nmkdir -p gpu-results/7\necho "$@" >>notes\n')
    srun.chmod(0o700)
    (tmp_path / "ci").symlink_to(CI)
    done = run_to_end(
        CI / "slurm", PATH=f"{tmp_path}:{os.environ['PATH']}", PYTHON=sys.executable,
        SLURM_SUBMIT_DIR=str(tmp_path), SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="3",
        SLURMD_NODENAME="one",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tier, other = (tmp_path / "notes").read_text().splitlines()
    assert tier.split()[-2:] == ["ci/gpu", "gpu-results/7"]
    launcher, _, words = other.partition(" -m harness ")
    assert "--nodes 3 " in launcher
    assert "-m torch.distributed.run --nnodes 3 " in launcher
    assert "--rdzv-endpoint one:20007" in launcher
    assert options_of(*words.split()).device == "cuda"


def test_packages_that_are_missing_or_too_old_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {"torch": "2.4.1+cu121", "flash-attn": "2.7.0"}
    monkeypatch.setattr("importlib.metadata.version", lambda name: old.get(name) or version(name))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(CI / "packages.py"), run_name="__main__")
    assert str(ended.value).startswith("torch 2.4.1+cu121 is older than 2.11: bring wheels along")
    assert "not needed, and flash-attn 2.7.0 is older than 2.8" in capsys.readouterr().out


def test_a_build_of_flash_attn_without_its_source_is_refused() -> None:
    done = run_to_end(CI / "flash-attn", "nothing.tar.gz")
    assert done.returncode == 2
    assert "nothing.tar.gz is not there; bring the .tar.gz of a release along" in done.stderr
