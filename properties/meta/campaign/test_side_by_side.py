"""Several pools at once: the same cases, the same report, the same exit status."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.request import WHOLE, Part, Request
from harness.cli import build_parser, main
from harness.commands.options import read_request
from harness.commands.ranks import open_pool
from harness.commands.side_by_side import pools_for
from harness.ranks import device
from properties.helpers.commands import ran
from properties.helpers.places import ROOT

SMALL = ("--sp", "2", "--dp", "1", "--json")
# On a busy machine a process alone takes seconds to start.
PATIENCE = 120.0
SLOW = """
import time
from pathlib import Path
from harness.candidates.own.native import LocalDialect

class Slow(LocalDialect):
    name = "slow"

    def run(self, case, rank, emit):
        with open("cases", "a") as file:
            print(rank.index, file=file)
        time.sleep(0.2)
        super().run(case, rank, emit)

SLOW = Slow()
"""


def checked(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    run = ran(sys.executable, "-m", "harness", "check", *SMALL, *words, cwd=folder)
    return run.returncode, json.loads(run.stdout), run.stderr


@contextmanager
def under_way(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Two parts, both in the middle of their cases."""
    (folder / "slow.py").write_text(SLOW)
    words = [*SMALL, "--cases", "200", "--pools", "2", "--candidate", "slow.py:SLOW"]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", "check", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        until, cases = time.monotonic() + PATIENCE, folder / "cases"
        while not cases.exists() or len(cases.read_text().splitlines()) < 40:
            assert time.monotonic() < until
            time.sleep(0.05)
        try:
            yield process
        finally:
            process.kill()


def parts_of(process: subprocess.Popen[str]) -> list[int]:
    """Processes that judge, as the kernel knows them."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
    return [pid for pid, command in commands.items() if "spawn_main" in command]


def test_two_pools_judge_the_same_cases_as_one_and_say_the_same_of_them(tmp_path: Path) -> None:
    told = {}
    for pools in ("1", "2"):
        status, told[pools], _ = checked(tmp_path, "--cases", "12", "--pools", pools)
        assert status == 0
        assert told[pools].pop("seconds") > 0
    assert told["1"] == told["2"]


def test_a_failure_is_found_shrunk_and_explained_by_the_part_that_has_it(
    tmp_path: Path,
) -> None:
    words = ("--cases", "4", "--pools", "2", "--candidate", "mutants.B48", "--dtype", "fp64")
    status, document, said = checked(tmp_path, *words)
    assert (status, document["verdict"]) == (1, "DIVERGED")
    failures = document["candidates"]["mutants.B48"]["failures"]
    assert len(failures) >= 1
    for failure in failures:
        assert said.count(f"bundle  {failure['bundle']}\n") == 1
    assert said.count("exit status 1: mutants.B48 is DIVERGED on case/1 ") == 1


def test_who_is_stopped_tells_what_all_parts_judged_until_then(tmp_path: Path) -> None:
    with under_way(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        document = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert process.returncode == 130
    assert (document["ended"], document["verdict"]) == ("interrupted", "FAULT")
    assert 0 < document["candidates"]["slow.py:SLOW"]["judged"] < 200


def test_a_part_that_is_gone_is_missing_and_nobody_passes(tmp_path: Path) -> None:
    with under_way(tmp_path) as process:
        one, other = parts_of(process)
        os.kill(one, signal.SIGKILL)
        os.kill(other, signal.SIGTERM)
        document = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert process.returncode == 130
    assert (document["shards"]["missing"], document["verdict"]) == ([1], "FAULT")


def test_no_part_outlives_who_started_it(tmp_path: Path) -> None:
    with under_way(tmp_path) as process:
        parts = parts_of(process)
        assert len(parts) == 2
        process.kill()
        until = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in parts):
            assert time.monotonic() < until
            time.sleep(0.05)


def test_what_no_part_can_run_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("MINE = 1 +\n")
    words = (*SMALL, "--pools", "2", "--candidate", "broken.py:MINE")
    run = ran(sys.executable, "-m", "harness", "check", *words, cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.count("broken.py does not import: SyntaxError") == 1
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--pools 0", "--pools=0: use auto, or a number from 1 to --cases=100"),
        ("--pools many", "--pools=many: use auto, or a number from 1 to --cases=100"),
        ("--pools 101", "--pools=101: use auto, or a number from 1 to --cases=100"),
        ("--pools 2 --shard 1/2", "--pools=2: use it on one host, and without --shard"),
    ],
)
def test_pools_that_cannot_be_are_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("there", "ranks", "count", "pools"),
    [
        (("cpu", 1), 4, 100, 4),
        (("cpu", 1), 4, 60, 2),
        (("cpu", 1), 32, 100, 1),
        (("cuda", 8), 2, 1000, 4),
        (("cuda", 8), 16, 1000, 1),
    ],
)
def test_auto_has_a_core_or_a_device_for_each_rank(
    there: tuple[str, int], ranks: int, count: int, pools: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "at_hand", lambda: there)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert pools_for("auto", request(count), ranks) == pools


def request(count: int) -> Request:
    return read_request(build_parser().parse_args(["check", "--cases", str(count)]))[0]


def test_each_part_has_its_share_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "at_hand", lambda: ("cuda", 8))
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda _: True)
    options = build_parser().parse_args(["check", "--device", "cuda"])
    seen = []
    for part in (WHOLE, Part(1, 4), Part(4, 4)):
        with open_pool(options, 2, (), part) as pool:
            seen.append((pool.placement.devices, pool.transport, pool.placement.sharing))
    assert seen == [
        (("cuda:0", "cuda:1"), "nccl", 1),
        (("cuda:0", "cuda:1"), "nccl", 1),
        (("cuda:6", "cuda:7"), "nccl", 1),
    ]
