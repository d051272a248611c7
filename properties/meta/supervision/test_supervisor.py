"""A supervisor serves one launch after the other, each as if it were the first."""

import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import harness
from harness.candidates import locate
from harness.case import parse
from harness.rank_program.controller_link import LAUNCH
from harness.rank_program.placement import PLACEMENT, Placement
from harness.ranks.pool import RankPool
from harness.supervision import host, supervisor, supervisor_process
from harness.trace import Assembly, Fault, Kind
from harness.wire.frames import encode
from harness.wire.messages import Ended, Order, Start, Stop, Stopped, ToSupervisor
from harness.wire.pipe import CHUNK, Pipe
from properties.helpers.alive import address_of, left_behind
from properties.helpers.places import PLANTED

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
# Variables of ranks whose controller does not listen.
NOT_CONNECTED = {LAUNCH: "none", PLACEMENT: "cpu gloo 1"}
SLEEPS = f"{PLANTED / 'faulty.py'}:SLEEPS"

StartPool = Callable[[], RankPool]


@pytest.fixture(autouse=True)
def no_idle_supervisors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervisor, "_IDLE", [])
    yield
    supervisor._end_all()


@pytest.fixture
def start_pool() -> Iterator[StartPool]:
    """Start a new pool and run a case on it."""
    pools = []

    def start() -> RankPool:
        pools.append(RankPool(2))
        assert isinstance(pools[-1].run(CASE, locate("native-gather")), Assembly)
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("folder", [*supervisor.INSTALLED, "/somewhere"])
def test_packages_beside_an_installed_harness_do_not_come_before_those_of_an_environment(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "__file__", f"{folder}/harness/__init__.py")
    monkeypatch.setenv("PYTHONPATH", ":/named:")
    own = [] if folder in supervisor.INSTALLED else [folder]
    assert supervisor.import_path().split(":") == [*own, "/named"]


@pytest.mark.slow
def test_an_idle_supervisor_serves_the_next_launch_and_keeps_nothing_of_the_last(
    start_pool: StartPool,
) -> None:
    pool = start_pool()
    first, *ranks = pool.pids()
    address = address_of(first)
    # It has a session of its own, and its address is in the environment of its ranks.
    assert os.getsid(first) == first
    assert {address_of(rank) for rank in ranks} == {address}
    pool.close()
    assert left_behind(address) == []
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert start_pool().pids()[0] == first
    # A second launch at the same time has another supervisor.
    assert start_pool().pids()[0] != first


@pytest.mark.slow
def test_a_rank_inherits_no_socket_of_its_supervisor(start_pool: StartPool) -> None:
    first, *ranks = start_pool().pids()
    assert _sockets(first)
    assert all(_sockets(rank).isdisjoint(_sockets(first)) for rank in ranks)


def _sockets(pid: int) -> set[str]:
    targets = {str(handle.readlink()) for handle in Path(f"/proc/{pid}/fd").iterdir()}
    return {target for target in targets if target.startswith("socket:")}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_supervisor_that_does_not_end_its_ranks_is_ended_with_them(
    number: signal.Signals, start_pool: StartPool
) -> None:
    pool = start_pool()
    pids = pool.pids()
    address = address_of(pids[0])
    os.kill(pids[0], number)
    pool.close()
    assert left_behind(address) == []
    assert start_pool().pids()[0] != pids[0]


@pytest.mark.slow
def test_the_end_of_a_supervisor_is_reported_in_its_first_launch_and_in_later_ones(
    start_pool: StartPool,
) -> None:
    faults = []
    start_pool().close()
    for _ in range(2):
        pool = start_pool()
        pool.submit(CASE, locate(SLEEPS))
        os.kill(pool.pids()[0], signal.SIGKILL)
        outcome = pool.collect()
        assert isinstance(outcome, Fault)
        faults.append((outcome.kind, outcome.summary))
    summary = "the supervisor of the ranks ended, killed by SIGKILL"
    assert faults == [(Kind.LAUNCHER, summary)] * 2


@pytest.mark.slow
def test_an_idle_supervisor_does_not_serve_a_launch_with_another_environment(
    start_pool: StartPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = start_pool()
    first = pool.pids()[0]
    pool.close()
    monkeypatch.setenv("SOMETHING", "else")
    assert start_pool().pids()[0] != first


@pytest.mark.slow
@pytest.mark.parametrize("forks", [True, False])
def test_ranks_start_in_the_current_folder_of_their_controller(
    start_pool: StartPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forks: bool
) -> None:
    monkeypatch.setattr(host, "should_fork", lambda _: forks)
    start_pool().close()
    monkeypatch.chdir(tmp_path)
    ranks = start_pool().pids()[1:]
    assert {Path(f"/proc/{rank}/cwd").readlink() for rank in ranks} == {tmp_path}


@pytest.mark.parametrize(
    ("devices", "forks"),
    [("cpu", True), ("pretend:0", True), ("cuda:0,cuda:1", True), ("xpu:0", False)],
)
def test_ranks_are_forked_if_a_fork_can_start_their_device(devices: str, *, forks: bool) -> None:
    environment = Placement(tuple(devices.split(","))).environment()
    assert host.should_fork(Order(ranks=2, environment=environment, launch="")) is forks


@pytest.mark.slow
def test_a_supervisor_that_ended_or_lost_its_folder_serves_no_other_launch(
    start_pool: StartPool,
) -> None:
    pids = set()
    for spoil in (
        lambda each: shutil.rmtree(each.folder),
        lambda each: (each.process.kill(), each.process.wait()),
    ):
        pool = start_pool()
        pids.add(pool.pids()[0])
        pool.close()
        (idle,) = supervisor._IDLE
        spoil(idle)
    assert start_pool().pids()[0] not in pids
    assert len(pids) == 2


@pytest.mark.slow
def test_only_so_many_supervisors_stay_idle(
    start_pool: StartPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_IDLE", 1)
    pools = [start_pool(), start_pool()]
    first, second = (pool.pids()[0] for pool in pools)
    for pool in pools:
        pool.close()
    assert not Path(f"/proc/{first}").exists()
    assert Path(f"/proc/{second}").exists()


@pytest.mark.slow
def test_a_start_that_is_stopped_at_once_ends_without_waiting_for_the_ranks(
    start_pool: StartPool,
) -> None:
    start_pool().close()
    (idle,) = supervisor._IDLE
    supervisor._IDLE.clear()
    (idle.folder / "tmp").mkdir()
    variables = host.rank_environments(Order(ranks=2, environment={}, launch=""), idle.folder)
    # Stopped, it reads both messages at once.
    idle.process.send_signal(signal.SIGSTOP)
    ranks = [each | NOT_CONNECTED for each in variables]
    idle.start(Start(ranks, str(Path.cwd()), should_fork=True))
    idle.pipe.send(Stop())
    idle.process.send_signal(signal.SIGCONT)
    messages = idle.receive()
    assert next(each for each in messages if not isinstance(each, Ended)) == Stopped()
    idle.end()


def test_a_start_of_many_ranks_may_arrive_in_any_number_of_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = []

    class IdleAgent:
        def __init__(self, start: Start, _pipe: object) -> None:
            served.append(start)

        def run(self) -> None:
            """Start nothing."""

    monkeypatch.setattr("harness.supervision.agent.Agent", IdleAgent)
    monkeypatch.setattr(supervisor_process, "bury_all_below", lambda: None)
    start = Start([{"RANK": "0", "long": "x" * CHUNK}] * 4, "/", should_fork=True)
    controller_end, supervisor_end = socket.socketpair()

    def send() -> None:
        controller_end.sendall(encode(start))
        controller_end.shutdown(socket.SHUT_WR)

    with controller_end, supervisor_end:
        sender = threading.Thread(target=send)
        sender.start()
        supervisor_process._serve(Pipe(supervisor_end, ToSupervisor))
        sender.join()
        assert served == [start]


def test_a_supervisor_that_has_not_ended_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "PATIENCE", 0.0)
    idle = supervisor.take(sys.executable, [])
    assert idle.reap() == -signal.SIGKILL
    idle.end()
