"""A supervisor serves one launch after the other, and each as if it were the first."""

import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.ranks import host, supervisor, supervisor_process
from harness.ranks.controller_link import LAUNCH
from harness.ranks.frames import encode
from harness.ranks.messages import Ended, Order, Start, Stop, Stopped, ToSupervisor
from harness.ranks.pipe import CHUNK, Pipe
from harness.ranks.placement import PLACEMENT, Placement
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind
from properties.helpers.alive import address_of, left_behind
from properties.helpers.places import PLANTED

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
# Of ranks that find nobody to connect to.
NOT_CONNECTED = {LAUNCH: "none", PLACEMENT: "cpu gloo 1"}
SLEEPS = f"{PLANTED / 'faulty.py'}:SLEEPS"

Ready = Callable[[], RankPool]


@pytest.fixture(autouse=True)
def none_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(supervisor, "_IDLE", [])
    yield
    supervisor._end_all()


@pytest.fixture
def ready() -> Iterator[Ready]:
    """Ranks of a pool of its own that have run a case."""
    pools = []

    def of_a_pool() -> RankPool:
        pools.append(RankPool(2))
        assert isinstance(pools[-1].run(CASE, locate("native-gather")), Assembly)
        return pools[-1]

    yield of_a_pool
    for pool in pools:
        pool.close()


@pytest.mark.slow
def test_who_has_nothing_to_do_serves_the_next_launch_and_nothing_is_left_of_the_one_before(
    ready: Ready,
) -> None:
    pool = ready()
    number, *ranks = pool.pids()
    address = address_of(number)
    # Its own session, and an environment that says whose it is.
    assert os.getsid(number) == number
    assert {address_of(rank) for rank in ranks} == {address}
    pool.close()
    assert left_behind(address) == []
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    again = ready()
    assert again.pids()[0] == number
    # Two at a time have one each.
    assert ready().pids()[0] != number


@pytest.mark.slow
def test_a_rank_holds_nothing_of_its_supervisor(ready: Ready) -> None:
    number, *ranks = ready().pids()
    orders = {f.readlink() for f in Path(f"/proc/{number}/fd").iterdir() if _is_socket(f)}
    assert orders
    for rank in ranks:
        held = {f.readlink() for f in Path(f"/proc/{rank}/fd").iterdir() if _is_socket(f)}
        assert held & orders == set()


def _is_socket(handle: Path) -> bool:
    return str(handle.readlink()).startswith("socket:")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_does_not_end_its_ranks_is_ended_with_them(
    number: signal.Signals, ready: Ready
) -> None:
    pool = ready()
    pids = pool.pids()
    address = address_of(pids[0])
    os.kill(pids[0], number)
    pool.close()
    assert left_behind(address) == []
    assert ready().pids()[0] != pids[0]


@pytest.mark.slow
def test_how_one_ended_is_told_in_its_first_launch_and_in_a_later_one(ready: Ready) -> None:
    told = []
    ready().close()
    for _ in range(2):
        pool = ready()
        pool.submit(CASE, locate(SLEEPS))
        os.kill(pool.pids()[0], signal.SIGKILL)
        outcome = pool.collect()
        assert isinstance(outcome, Fault)
        told.append((outcome.kind, outcome.summary))
    how = "the supervisor of the ranks ended, killed by SIGKILL"
    assert told == [(Kind.LAUNCHER, how)] * 2


@pytest.mark.slow
def test_what_was_read_of_one_environment_is_not_kept_for_another(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ready()
    number = pool.pids()[0]
    pool.close()
    monkeypatch.setenv("SOMETHING", "else")
    assert ready().pids()[0] != number


@pytest.mark.slow
@pytest.mark.parametrize("forks", [True, False])
def test_ranks_begin_where_their_controller_is(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, forks: bool
) -> None:
    monkeypatch.setattr(host, "forks", lambda _: forks)
    ready().close()
    monkeypatch.chdir(tmp_path)
    ranks = ready().pids()[1:]
    assert {Path(f"/proc/{rank}/cwd").readlink() for rank in ranks} == {tmp_path}


@pytest.mark.parametrize(
    ("devices", "forks"),
    [("cpu", True), ("pretend:0", True), ("cuda:0,cuda:1", True), ("xpu:0", False)],
)
def test_ranks_are_forked_where_a_fork_can_start_their_device(
    devices: str, *, forks: bool
) -> None:
    environment = Placement(tuple(devices.split(","))).environment()
    assert host.forks(Order(ranks=2, environment=environment, launch="")) is forks


@pytest.mark.slow
def test_one_whose_folder_was_removed_or_that_is_gone_serves_nobody(ready: Ready) -> None:
    seen = set()
    for end in (
        lambda each: shutil.rmtree(each.folder),
        lambda each: (each.process.kill(), each.process.wait()),
    ):
        pool = ready()
        seen.add(pool.pids()[0])
        pool.close()
        ((_, waits),) = supervisor._IDLE
        end(waits)
    assert ready().pids()[0] not in seen
    assert len(seen) == 2


@pytest.mark.slow
def test_no_more_wait_than_are_worth_their_memory(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MOST_IDLE", 1)
    pools = [ready(), ready()]
    first, second = (pool.pids()[0] for pool in pools)
    for pool in pools:
        pool.close()
    assert not Path(f"/proc/{first}").exists()
    assert Path(f"/proc/{second}").exists()


@pytest.mark.slow
def test_ranks_that_are_wanted_no_more_before_they_are_there_cost_no_patience(
    ready: Ready,
) -> None:
    ready().close()
    ((_, waits),) = supervisor._IDLE
    supervisor._IDLE.clear()
    (waits.folder / "tmp").mkdir()
    told = host.environments(Order(ranks=2, environment={}, launch=""), waits.folder)
    # Both are read at once.
    waits.process.send_signal(signal.SIGSTOP)
    ranks = [each | NOT_CONNECTED for each in told]
    waits.start(Start(ranks, str(Path.cwd()), forks=True))
    waits.pipe.send(Stop())
    waits.process.send_signal(signal.SIGCONT)
    said = waits.receive()
    assert next(each for each in said if not isinstance(each, Ended)) == Stopped()
    waits.end()


def test_an_order_for_many_ranks_is_taken_whole_in_however_many_pieces_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []

    class Noted:
        def __init__(self, order: Start, _pipe: object) -> None:
            taken.append(order)

        def run(self) -> None:
            """Nothing to start."""

    monkeypatch.setattr("harness.ranks.agent.Agent", Noted)
    monkeypatch.setattr(supervisor_process, "bury_all_below", lambda: None)
    order = Start([{"RANK": "0", "long": "x" * CHUNK}] * 4, "/", forks=True)
    ours, theirs = socket.socketpair()

    def send() -> None:
        ours.sendall(encode(order))
        ours.shutdown(socket.SHUT_WR)

    with ours, theirs:
        sender = threading.Thread(target=send)
        sender.start()
        supervisor_process._serve(Pipe(theirs, ToSupervisor))
        sender.join()
        assert taken == [order]
