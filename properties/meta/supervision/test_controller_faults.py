"""Whatever ends a supervisor or the controller, at any moment, ends every rank as well."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind
from properties.helpers.alive import address_of, left_behind
from properties.helpers.places import PLANTED, ROOT
from properties.helpers.wait import eventually

HELPERS = ROOT / "properties" / "helpers"
CASE = parse("case/1 rows=3:111,4:1011 sp=2")
MARGIN = 5.0


@contextmanager
def controller(stage: str, candidate: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a controller in a process group of its own; yield it and its supervisor's pid."""
    command = [sys.executable, str(HELPERS / "controller.py"), stage]
    with subprocess.Popen(
        [*command, f"{PLANTED / 'faulty.py'}:{candidate}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def wait_for_rank_1(address: str, key: str = "case received") -> None:
    progress = Path(address).parent / "progress.1"
    assert eventually(lambda: progress.exists() and key.encode() in progress.read_bytes())


# In its first launch, or in a later launch of the same supervisor.
@pytest.mark.slow(but=1)
@pytest.mark.parametrize("stage", ["running", "again"])
def test_nothing_outlives_a_controller_that_is_killed_in_the_middle_of_a_case(stage: str) -> None:
    # A deaf rank notices nothing itself: its supervisor has to end it.
    with controller(stage, "DEAF") as (process, supervisor):
        address = address_of(supervisor)
        wait_for_rank_1(address, "deaf")
        process.kill()
        process.wait(MARGIN)
    assert left_behind(address) == []


# Holds a supervisor at this point, until a test opens the other end of the named pipe `go`.
HELD = """
import os
from pathlib import Path

if "HARNESS_SOCKET" in os.environ:
    Path(__file__).with_name("held").touch()
    Path(__file__).with_name("go").read_text()
"""


@pytest.mark.parametrize("file", ["sitecustomize.py", "torch.py"])
def test_nothing_outlives_a_controller_that_is_killed_while_its_supervisor_starts(
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / file).write_text(HELD)
    os.mkfifo(tmp_path / "go")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with controller("starting", "SLEEPS") as (process, supervisor):
        address = address_of(supervisor)
        assert eventually((tmp_path / "held").exists)
        process.kill()
        process.wait(MARGIN)
    if file == "sitecustomize.py":
        # It does not watch its controller yet, so let it go on.
        (tmp_path / "go").write_text("")
    assert left_behind(address) == []


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("stage", "whole_group"), [("starting", False), ("running", True)])
def test_ctrl_c_ends_everything_at_once(stage: str, whole_group: bool) -> None:
    with controller(stage, "SLEEPS") as (process, supervisor):
        address = address_of(supervisor)
        if stage == "running":
            wait_for_rank_1(address)
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        started = time.monotonic()
        _, errors = process.communicate(timeout=MARGIN)
        assert time.monotonic() - started < MARGIN
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert left_behind(address) == []


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["pool", "controller"])
def test_a_daemon_that_a_candidate_starts_is_ended_with_its_pool_or_controller(ends: str) -> None:
    if ends == "pool":
        with RankPool(2) as pool:
            pool.submit(CASE, locate(f"{PLANTED / 'faulty.py'}:LEAVES_A_DAEMON"))
            assert pool.wait_until_ready() is None
            address = address_of(pool.pids()[0])
            wait_for_rank_1(address, "daemon")
    else:
        with controller("running", "LEAVES_A_DAEMON") as (process, supervisor):
            address = address_of(supervisor)
            wait_for_rank_1(address, "daemon")
            process.kill()
            process.wait(MARGIN)
    assert left_behind(address) == []


# The controller's end wakes a stopped supervisor; without a supervisor, ranks notice it.
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_nothing_outlives_a_killed_controller_whose_supervisor_was_stopped_or_killed(
    number: signal.Signals,
) -> None:
    with controller("running", "SLEEPS") as (process, supervisor):
        address = address_of(supervisor)
        wait_for_rank_1(address)
        os.kill(supervisor, number)
        process.kill()
        process.wait(MARGIN)
    assert left_behind(address) == []


# Notes the moment of the trouble, from which the test measures: a busy machine may get there late.
TROUBLE = """
import os, signal, sys
from pathlib import Path

def begin():
    Path(__file__).with_name("begun").touch()

"""
TROUBLE_AT_START = {
    "no torch": (
        "if os.environ.get('RANK') == '1': begin(); sys.modules['torch'] = None",
        "rank 1 died while starting, exit status 1",
        "import of torch halted",
    ),
    "no supervisor": (
        "if 'HARNESS_SOCKET' in os.environ: begin(); sys.modules['torch'] = None",
        "the supervisor of the ranks ended, exit status 1",
        "'torch' is not a package",
    ),
    "never connected": (
        "if os.environ.get('RANK') == '1': begin(); signal.pause()",
        "not all ranks were up within 2 s: rank 0, 1 is missing",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
@pytest.mark.parametrize("why", TROUBLE_AT_START)
def test_a_rank_that_cannot_start_is_named_with_the_end_of_its_output(
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, summary, log = TROUBLE_AT_START[why]
    (tmp_path / "sitecustomize.py").write_text(TROUBLE + code)
    deadline = 2.0 if why == "never connected" else 60.0
    with RankPool(2, start_deadline=deadline) as pool:
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path))
            pool.start()
        address = address_of(pool.pids()[0])
        started, marker = time.time(), tmp_path / "begun"
        fault = pool.run(CASE, locate("native-local"))
        since = marker.stat().st_mtime if marker.exists() else started
        assert time.time() - since < 2 * MARGIN
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.summary) == (Kind.START, summary)
        assert log in fault.log
        assert left_behind(address) == []
        # The next case gets the same fault without another start.
        started = time.monotonic()
        assert pool.run(CASE, locate("native-local")) is fault
        assert time.monotonic() - started < 1
        assert pool.launches == 1


@pytest.mark.slow
def test_a_pool_whose_ranks_were_ready_before_survives_one_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, summary, _ = TROUBLE_AT_START["no supervisor"]
    (tmp_path / "sitecustomize.py").write_text(TROUBLE + code)
    with RankPool(2) as pool:
        assert isinstance(pool.run(CASE, locate("native-local")), Assembly)
        pool.kill()
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path))
            fault = pool.run(CASE, locate("native-local"))
        assert isinstance(fault, Fault)
        assert fault.summary == summary
        assert isinstance(pool.run(CASE, locate("native-local")), Assembly)


STARTS_WRONG = """
import os, signal
from harness.rank_program import placement

join_ranks = placement.join_ranks
def settled(local):
    if os.environ["RANK"] == "1": {incident}
    # Its peer does not come up either.
    signal.pause()
placement.join_ranks = settled
"""


# Rank 1 ends while it starts, and rank 0 as soon as it sees that.
ENDS_AFTER_IT = """
import os, select
from pathlib import Path
from harness.rank_program import placement

def settled(local):
    pid = Path(__file__).with_name("rank-1")
    if os.environ["RANK"] == "1":
        os.mkfifo(pid)
        with pid.open("w") as file:
            file.write(str(os.getpid()))
        os._exit(3)
    while not pid.exists():
        os.sched_yield()
    select.select([os.pidfd_open(int(pid.read_text()))], [], [])
    os._exit(4)
placement.join_ranks = settled
"""


@pytest.mark.slow
def test_if_two_ranks_end_while_they_start_the_first_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(ENDS_AFTER_IT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with RankPool(2) as pool:
        fault = pool.run(CASE, locate("native-local"))
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.summary) == (
        Kind.START,
        "rank 1 died while starting, exit status 3",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("incident", "how", "log"),
    [
        ("signal.raise_signal(signal.SIGTERM)", "killed by SIGTERM", ""),
        ("join_ranks(99 / 0)", "exit status 1", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_forked_rank_that_cannot_start_is_named_with_the_end_of_its_output(
    incident: str, how: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STARTS_WRONG.format(incident=incident))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with RankPool(2) as pool:
        fault = pool.run(CASE, locate("native-local"))
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.rank) == (Kind.START, 1)
    assert how in fault.summary
    assert log in fault.log
