"""Several pools at once judge the same cases, with the same report and exit status."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.request import Request
from harness.cli import main
from harness.commands.campaign_request import read_request
from harness.commands.engines import pools_for
from harness.commands.options import Pools
from harness.commands.ranks import open_pool
from harness.engine.lot import WHOLE, Part
from harness.ranks import device as devices
from properties.helpers.commands import HARNESS, campaign_of, options_of, run_to_end
from properties.helpers.places import ROOT
from properties.helpers.wait import PATIENCE, eventually

pytest_plugins = ["properties.helpers.own_pool"]

PARTS = (sys.executable, "-m", "properties.helpers.parts")


# Fails on a case in the second half of ten.
FAILS_LATER = """
from harness.candidates.own.native import LocalDialect

class Later(LocalDialect):
    name = "later"

    def loss(self, case, batch, stream, nll_L, targets, rank):
        right = super().loss(case, batch, stream, nll_L, targets, rank)
        return right * 2 if case.seed == SEED else right

SEED = 5886
LATER = Later()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_two_pools_judge_the_same_cases_as_one_pool_and_report_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("later.py").write_text(FAILS_LATER)
    words = ["check", "--sp", "2", "--dp", "1", "--cases", "10", "--json", "--ranks", "2"]
    words += ["--candidate", "native-local", "--candidate", "later.py:LATER", "--no-diagnose"]
    assert main(words) == 1
    one = campaign_of(capsys.readouterr().out)
    run = run_to_end(*HARNESS, *words, "--pools", "2", cwd=Path.cwd())
    assert run.returncode == 1
    two = campaign_of(run.stdout)
    for document in (one, two):
        # The pool of the test session may have more.
        assert document["campaign"].pop("ranks") >= 2
        tally = document["candidates"]["later.py:LATER"]
        assert tally["judged"] == 9
        for failure in tally["failures"]:
            for name in ("bundle", "explanation"):
                failure.pop(name)
    assert two == one
    assert run.stderr.count("situations met: ") == 1
    assert run.stderr.count("exit status 1: later.py:LATER is DIVERGED on case/1 ") == 1


@pytest.mark.slow
def test_each_worker_explains_and_keeps_the_failure_that_it_finds(tmp_path: Path) -> None:
    words = ["check", "--sp", "2", "--dp", "1", "--cases", "10", "--json", "--pools", "2"]
    words += ["--ranks", "2"]
    words += ["--no-diagnose", "--candidate", "mutants.B14"]
    run = run_to_end(sys.executable, "-m", "harness", *words, cwd=tmp_path)
    document = json.loads(run.stdout)
    assert (run.returncode, document["verdict"]) == (1, "DIVERGED")
    failures = document["candidates"]["mutants.B14"]["failures"]
    assert failures
    for failure in failures:
        assert run.stderr.count(f"bundle  {failure['bundle']}\n") == 1
    assert run.stderr.count("exit status 1: mutants.B14 is DIVERGED on case/1 ") == 1


@contextmanager
def running_workers(folder: Path, count: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Start workers that never finish; yield their parent, and their pids."""
    with subprocess.Popen(
        [*PARTS, "goes on", str(count)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        files = [folder / f"part-{number}" for number in range(1, count + 1)]
        try:
            assert eventually(lambda: all(file.exists() and file.read_text() for file in files))
            yield process, [int(file.read_text()) for file in files]
        finally:
            process.kill()


@pytest.mark.slow
def test_the_results_of_all_workers_become_one_campaign(tmp_path: Path) -> None:
    run = run_to_end(*PARTS, "passes", "3", cwd=tmp_path)
    document = json.loads(run.stdout)
    assert (document["verdict"], document["cases"], document["size"]) == ("EQUAL", 3, 3)
    assert document["shards"] == {"of": 1, "examined": [1], "missing": []}
    assert sorted(run.stderr.splitlines()) == ["part 1/3", "part 2/3", "part 3/3"]


def test_an_interrupted_campaign_reports_what_all_workers_judged_by_then(tmp_path: Path) -> None:
    with running_workers(tmp_path, 2) as (process, _):
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert (document["ended"], document["verdict"]) == ("interrupted", "FAULT")
    assert document["shards"]["missing"] == []


# Holds a worker at this point, until the test opens the other end of the named pipe `go`.
HELD = """
import os, sys

def hold():
    with open("held", "w") as file:
        file.write(str(os.getpid()))
    open("go").close()

class Finder:
    def find_spec(self, name, *_):
        if name == "harness.campaign.request":
            sys.meta_path.remove(self)
            hold()

if "--multiprocessing-fork" in sys.orig_argv:
    {what}
"""
MOMENTS = {"it has begun": "hold()", "it imports": "sys.meta_path.insert(0, Finder())"}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_starting_worker_ignores_a_ctrl_c_at_the_terminal(moment: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HELD.format(what=MOMENTS[moment]))
    os.mkfifo(tmp_path / "go")
    held = tmp_path / "held"
    with subprocess.Popen(
        [*PARTS, "goes on", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert eventually(lambda: held.exists() and bool(held.read_text()))
        os.kill(int(held.read_text()), signal.SIGINT)
        (tmp_path / "go").write_text("")
        assert eventually(lambda: (tmp_path / "part-1").exists() or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=PATIENCE)
    assert json.loads(output)["ended"] == "interrupted"
    assert errors == "part 1/1\n"


@pytest.mark.slow
def test_a_lot_whose_worker_is_lost_is_judged_by_another(tmp_path: Path) -> None:
    run = run_to_end(*PARTS, "vanishes once", "3", cwd=tmp_path)
    document = json.loads(run.stdout)
    assert (document["verdict"], document["cases"], document["size"]) == ("EQUAL", 3, 3)
    assert len(run.stderr.splitlines()) == 6


@pytest.mark.slow
def test_a_worker_that_is_lost_during_an_interruption_makes_the_campaign_a_fault(
    tmp_path: Path,
) -> None:
    with running_workers(tmp_path, 3) as (process, workers):
        os.kill(workers[1], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        os.kill(workers[1], signal.SIGKILL)
        document = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert (document["cases"], document["size"], document["verdict"]) == (2, 3, "FAULT")


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    with running_workers(tmp_path, 2) as (process, workers):
        process.kill()
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "message"),
    [
        ("refuses", "BadInput: no such thing"),
        ("has no ranks", "NoRanks: harness: they do not come up"),
        ("breaks", "NoRanks: harness: nothing can be judged here: ZeroDivisionError:; in full"),
        ("vanishes", "Lost: lot 0, piece "),
    ],
)
def test_a_failure_of_all_workers_is_reported_once(
    does: str, message: str, tmp_path: Path
) -> None:
    run = run_to_end(*PARTS, does, "2", cwd=tmp_path)
    assert json.loads(run.stdout).startswith(message)
    assert {*run.stderr.splitlines()} <= {"part 1/2", "part 2/2"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--pools 0", "--pools=0: use auto, or a number from 1 to --cases=100"),
        ("--pools many", "--pools=many: use auto, or a number from 1 to --cases=100"),
        ("--pools 101", "--pools=101: use auto, or a number from 1 to --cases=100"),
    ],
)
def test_an_impossible_number_of_pools_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words.split()]) == 2
    assert message in capsys.readouterr().err


def request(count: int) -> Request:
    return read_request(options_of("check", "--cases", str(count)))[0]


@pytest.mark.parametrize(
    ("machine", "device", "ranks", "worth", "pools"),
    [
        (("cpu", 1), "auto", 4, 4, 4),
        (("cpu", 1), "auto", 4, 2, 2),
        (("cpu", 1), "auto", 32, 4, 1),
        (("cuda", 8), "auto", 2, 40, 4),
        (("cuda", 8), "cuda", 16, 40, 1),
        (("cuda", 1), "cpu", 4, 40, 4),
        (("cuda", 1), "pretend", 4, 40, 4),
    ],
)
def test_auto_chooses_pools_so_that_each_rank_has_a_core_or_a_device(
    machine: tuple[str, int],
    device: Any,
    ranks: int,
    worth: int,
    pools: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "find_accelerator", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    options = Pools(pools="auto", device=device)
    assert pools_for(options, ranks, most=100, worth=worth, of="100") == pools


def test_each_worker_has_its_share_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_accelerator", lambda: ("cuda", 8))
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda _: True)
    options = options_of("check", "--device", "cuda")
    placements = []
    for part in (WHOLE, Part(1, 4), Part(4, 4)):
        with open_pool(options, 2, (), part) as pool:
            placements.append((pool.placement.devices, pool.transport, pool.placement.sharing))
    assert placements == [
        (("cuda:0", "cuda:1"), "nccl", 1),
        (("cuda:0", "cuda:1"), "nccl", 1),
        (("cuda:6", "cuda:7"), "nccl", 1),
    ]
