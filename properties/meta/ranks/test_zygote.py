"""Who launches again has its launches forked, and each is what a started one would be."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.case import parse
from harness.ranks import begin
from harness.ranks.begin import Forked, Zygote
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind
from properties.helpers.places import PLANTED

CASE = parse("case/1 rows=3:111,4:1011 sp=2")
SLEEPS = f"{PLANTED / 'faulty.py'}:SLEEPS"
PATIENCE = 5.0

Process = subprocess.Popen[bytes] | Forked
Ready = Callable[[], RankPool]


@pytest.fixture(autouse=True)
def nothing_launched_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "_LAST", {})


@pytest.fixture
def ready() -> Iterator[Ready]:
    """Ranks of a pool of its own that have run a case."""
    pools = []

    def of_a_pool() -> RankPool:
        pools.append(RankPool(2))
        assert isinstance(pools[-1].run(CASE, "native-gather"), Assembly)
        return pools[-1]

    yield of_a_pool
    for pool in pools:
        pool.close()


def process(pool: RankPool) -> Process:
    (station,) = pool._stations
    assert station.crew is not None
    return station.crew.launch.torchrun.process


def server() -> Zygote:
    ((_, found),) = begin._LAST.values()
    assert found is not None
    return found


def test_the_first_launch_is_started_and_those_after_it_are_forked(
    ready: Ready,
    address_of: Callable[[int], str],
    left_behind: Callable[[str], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(process(ready()), subprocess.Popen)
    monkeypatch.chdir(tmp_path)
    pools = [ready(), ready()]
    addresses = []
    for pool in pools:
        torchrun, *ranks = pool.pids()
        assert isinstance(process(pool), Forked)
        # Its own session, place and output, and an environment that says whose it is.
        assert os.getsid(torchrun) == torchrun
        assert Path(f"/proc/{torchrun}/cwd").readlink() == tmp_path
        addresses.append(address_of(torchrun))
        folder = Path(addresses[-1]).parent
        assert Path(f"/proc/{torchrun}/fd/1").readlink() == folder / "torchrun.0"
        assert {address_of(rank) for rank in ranks} == {addresses[-1]}
        # What else the zygote holds is none of theirs.
        others = [f for f in Path(f"/proc/{torchrun}/fd").iterdir() if _is_of_others(f, folder)]
        assert others == []
    assert len(set(addresses)) == 2
    for pool, address in zip(pools, addresses, strict=True):
        torchrun = pool.pids()[0]
        pool.close()
        assert left_behind(address) == []
        assert not Path(f"/proc/{torchrun}").exists()


def _is_of_others(handle: Path, folder: Path) -> bool:
    place = str(handle.readlink())
    return "harness-ranks-" in place and str(folder) not in place


def test_how_one_ended_is_told_as_of_a_started_one(ready: Ready) -> None:
    told = []
    for _ in range(2):
        pool = ready()
        pool.submit(CASE, SLEEPS)
        os.kill(pool.pids()[0], signal.SIGKILL)
        outcome = pool.collect()
        assert isinstance(outcome, Fault)
        told.append((outcome.kind, outcome.summary))
    assert isinstance(process(ready()), Forked)
    assert told[0] == told[1] == (Kind.LAUNCHER, "torchrun ended, killed by SIGKILL")


def test_where_none_can_be_had_launches_are_started(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready()
    monkeypatch.setattr(begin, "NOWHERE", "no room")
    for _ in range(2):
        assert isinstance(process(ready()), subprocess.Popen)


def test_of_one_that_is_gone_launches_go_on_and_no_more_are_forked(
    ready: Ready, address_of: Callable[[int], str], left_behind: Callable[[str], list[str]]
) -> None:
    ready()
    pool = ready()
    server()._process.kill()
    # Where nobody saw how it ended, that is said; and that is no reason to wait.
    assert isinstance(pool.run(CASE, "native-gather"), Assembly)
    started, address, forked = time.monotonic(), address_of(pool.pids()[0]), process(pool)
    pool.close()
    assert time.monotonic() - started < PATIENCE
    assert forked.wait() == begin.UNKNOWN
    assert left_behind(address) == []
    assert isinstance(process(ready()), subprocess.Popen)


def test_one_that_does_not_answer_is_given_up(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready()
    ready().close()
    monkeypatch.setattr(begin, "IMPORTING", 0.2)
    os.kill(server()._process.pid, signal.SIGSTOP)
    assert isinstance(process(ready()), subprocess.Popen)
    assert server()._process.returncode == -signal.SIGKILL


def test_what_was_read_of_one_environment_is_not_kept_for_another(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready()
    pool = ready()
    earlier = server()
    monkeypatch.setenv("SOMETHING", "else")
    assert isinstance(process(ready()), subprocess.Popen)
    # The one of before goes after the last of its launches.
    assert earlier._process.poll() is None
    pool.close()
    assert earlier._process.wait(PATIENCE) == 0
