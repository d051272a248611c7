"""Ranks that a launcher started on several hosts are judged, named and ended like any others."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.cli import main
from harness.commands.options import fit_to_launcher
from harness.ranks import channel
from harness.ranks.frames import Reader
from harness.ranks.host_keeper import HostKeeper
from harness.ranks.messages import From, Left
from harness.ranks.world import NotTogether, World
from harness.trace import Fault, Kind
from harness.verdict import Verdict
from properties.helpers.alive import address_of, left_behind
from properties.helpers.another_host import children, free_port, pool_with_another_host, told
from properties.helpers.commands import HARNESS, campaign_of, options_of, ran, running
from properties.helpers.judging import evaluate
from properties.helpers.places import PLANTED
from properties.helpers.wait import PATIENCE, eventually

pytest_plugins = ["pytester"]

CASE = parse("case/1 rows=5:11111,4:1011 sp=2")
SLEEPS = f"{PLANTED / 'faulty.py'}:SLEEPS"


def sleeping(other: subprocess.Popen[str], *, launched: bool = False) -> str:
    """Where the other host's ranks belong to, as soon as rank 1 is in the middle of a case."""
    pid = other.pid
    if launched:
        # Between them is the launcher.
        assert eventually(lambda: bool(children(other.pid)))
        (pid,) = children(other.pid)
    assert eventually(lambda: bool(children(pid)))
    (supervisor,) = children(pid)
    address = address_of(supervisor)
    progress = Path(address).parent / "progress.1"
    assert eventually(lambda: progress.exists() and b"case received" in progress.read_bytes())
    return address


@pytest.mark.slow
def test_a_death_on_another_host_is_named_and_the_host_serves_the_next_launch() -> None:
    with pool_with_another_host() as (pool, other, nodes):
        assert pool.wait_until_ready() is None
        pool.submit(CASE, locate(SLEEPS))
        address = sleeping(other)
        os.kill(pool.pids()[2], signal.SIGKILL)
        fault = pool.collect()
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.summary) == (Kind.DIED, "rank 1 died, killed by SIGKILL")
        assert fault.last_key == "case received"
        assert fault.ranks[1] == "rank 1: gone or not answering; last key reached: case received"
        assert left_behind(address) == []
        assert evaluate(CASE, "native-local", pool).verdict is Verdict.WITHIN
        nodes.close()
        assert other.wait(PATIENCE) == 0


@pytest.mark.slow
def test_who_ends_on_another_host_is_named_though_its_children_hold_its_socket() -> None:
    with pool_with_another_host() as (pool, *_):
        fault = pool.run(CASE, locate(f"{PLANTED / 'faulty.py'}:LEAVES_CHILDREN"))
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.summary) == (Kind.DIED, "rank 1 died, exit status 7")


def test_what_a_rank_said_before_its_end_is_passed_on_before_its_end() -> None:
    said: list[From | Left] = []
    channel = SimpleNamespace(socket=socket.socket(), send=lambda frame: said.extend(heard(frame)))
    supervisor = SimpleNamespace(pipe=object(), process=SimpleNamespace(returncode=None))
    host = SimpleNamespace(
        supervisor=supervisor, hear=lambda: [1], left=dict, ended={1: "exit status 7"}
    )
    ours, theirs = socket.socketpair()
    with channel.socket, ours, theirs:
        keeper = HostKeeper(cast("Any", channel))
        keeper._host, keeper._connections = cast("Any", host), {0: theirs}
        keeper._selector.register(theirs, selectors.EVENT_READ, 0)
        ours.sendall(b"the last word")
        keeper._hear(cast("Any", host), supervisor.pipe, None)
        keeper._selector.close()
    assert said == [From("", 0, b"the last word"), Left("", "", {}, {"1": "exit status 7"})]


def heard(frame: bytes) -> Iterator[From | Left]:
    return Reader[From | Left](From | Left).feed(frame)


@pytest.mark.slow
def test_a_host_that_is_gone_is_named_at_once_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Twice as long as the other says something.
    monkeypatch.setattr(channel, "SILENCE", 2 * channel.BEAT)
    with pool_with_another_host() as (pool, other, _):
        assert pool.wait_until_ready() is None
        pool.submit(CASE, locate(SLEEPS))
        sleeping(other)
        other.kill()
        fault = pool.collect()
        assert isinstance(fault, Fault)
        assert fault.ranks[1].endswith("last key reached: unknown, its host did not tell")
        fault = pool.run(CASE, locate("native-local"))
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.summary) == (Kind.START, "node 1 is gone")


@pytest.mark.slow
def test_nothing_on_another_host_outlives_the_controller() -> None:
    port = free_port()
    command = (*HARNESS, "repro", str(CASE), "--candidate", SLEEPS, "--deadline", "600")
    with (
        running(*command, **told(0, 2, port)) as controller,
        running(*command, **told(1, 2, port)) as other,
    ):
        address = sleeping(other)
        controller.kill()
        assert other.wait(PATIENCE) == 3
        assert left_behind(address) == []


@pytest.mark.slow
def test_who_has_nothing_to_do_ends_at_once_and_bad_input_ends_all() -> None:
    port, words = free_port(), ("golden", "verify", "--store", "nowhere")
    with (
        running(*HARNESS, *words, **told(0, 3, port, 0)) as first,
        running(*HARNESS, *words, **told(1, 3, port, 0)) as second,
        running(*HARNESS, *words, **told(2, 3, port, 0)) as third,
    ):
        assert [second.wait(PATIENCE), third.wait(PATIENCE)] == [0, 0]
        assert first.wait(PATIENCE) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "first"}, "RANK=first WORLD_SIZE=2 MASTER_PORT="),
        ({"MASTER_PORT": "x"}, "RANK=1 WORLD_SIZE=2 MASTER_PORT=x: use whole numbers, or unset"),
    ],
)
def test_what_a_launcher_cannot_mean_is_refused(
    change: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**told(1, 2, free_port()), **change}.items():
        monkeypatch.setenv(name, value)
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith(f"harness: {said}")


def test_who_is_alone_or_in_a_rank_was_started_by_no_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in told(0, 1, 1).items():
        monkeypatch.setenv(name, value)
    assert World.here() is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert World.here() == World(0, 2, "127.0.0.1", 1)
    monkeypatch.setenv("HARNESS_SOCKET", "here")
    assert World.here() is None


def test_hosts_that_do_not_come_or_have_too_many_processes_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.ranks.world.PATIENCE", timedelta(seconds=1))
    launched = World(0, 3, "127.0.0.1", free_port())
    with pytest.raises(NotTogether, match="nothing answers there"):
        launched.connect()
    served = launched.serve_store()
    assert served
    with pytest.raises(NotTogether, match="WORLD_SIZE=3: process 1 did not come within 1 s"):
        launched.hosts(launched.connect())
    store = launched.connect()
    for rank in (1, 2):
        store.set(f"host/{rank}", "another")
    with pytest.raises(NotTogether, match=r"hosts have \[1, 2\] processes; start as many on each"):
        launched.hosts(store)


@dataclass(frozen=True, slots=True)
class Hosts:
    """What a command begins with to run on each, and where they meet."""

    address: str = "127.0.0.1"
    inside: tuple[tuple[str, ...], ...] = ((), ())
    namespaces: tuple[str, ...] = ()


CABLE = """
link add cable netns {a} type veth peer name cable netns {b}
-n {a} addr add 10.7.7.1/24 dev cable
-n {b} addr add 10.7.7.2/24 dev cable
-n {a} link set cable up
-n {b} link set cable up
-n {a} link set lo up
-n {b} link set lo up
"""


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Two network namespaces and the one cable between them; each names its end of it to gloo."""
    names = [f"harness-{os.getpid()}-{which}" for which in "ab"]
    with ExitStack() as stack:
        try:
            for name in names:
                ip(f"netns add {name}")
                stack.callback(ip, f"netns delete {name}")
            for line in CABLE.strip().format(a=names[0], b=names[1]).splitlines():
                ip(line)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no two network namespaces on this machine: {error}")
        inside = (
            ("ip", "netns", "exec", name, "env", "GLOO_SOCKET_IFNAME=cable") for name in names
        )
        yield Hosts("10.7.7.1", tuple(inside), tuple(names))


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


@contextmanager
def under_torchrun(
    hosts: Hosts, ranks: int, *words: str
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """A command on two hosts, and what becomes of it on each."""
    port = free_port() if hosts.address == "127.0.0.1" else 29400
    there = f"--nnodes 2 --master-addr {hosts.address} --master-port {port}".split()
    torchrun = (sys.executable, "-m", "torch.distributed.run", *there, f"--nproc-per-node={ranks}")
    with ExitStack() as stack:
        second, first = (
            stack.enter_context(
                running(*hosts.inside[node], *torchrun, f"--node-rank={node}", *words)
            )
            for node in (1, 0)
        )
        yield first, second
        second.wait(PATIENCE)


CHECK = [
    *("check", "--candidate", "native-local", "--candidate", "mutants.B14", "--ranks", "4"),
    *("--sp", "2,4", "--dp", "1", "--cases", "8", "--json", "--no-diagnose"),
]


@pytest.mark.slow
def test_two_hosts_under_torchrun_come_to_what_one_comes_to(tmp_path: Path) -> None:
    alone = ran(*HARNESS, *CHECK, cwd=tmp_path)
    with two_hosts() as hosts, under_torchrun(hosts, 2, "-m", "harness", *CHECK) as (first, _):
        said, log = first.communicate(timeout=PATIENCE)
    together = campaign_of(said)
    for each in (together, one := campaign_of(alone.stdout)):
        for failure in each["candidates"]["mutants.B14"]["failures"]:
            # Where it shows again, and on how many ranks, is another matter.
            for name in ("bundle", "replay", "explanation", "ranks", "printed"):
                failure.pop(name)
    assert together == one
    assert "exit status 1: mutants.B14 is DIVERGED on case/1 " in log
    assert first.returncode == alone.returncode == 1


@pytest.mark.slow
def test_a_rank_that_crashes_and_one_that_hangs_are_booked_and_the_campaign_goes_on() -> None:
    faulty = PLANTED / "faulty.py"
    words = (
        f"check --candidate {faulty}:DIES --candidate {faulty}:SPINS --candidate "
        "native-local --sp 2 --dp 1 --cases 4 --json --no-diagnose --deadline 3"
    )
    with under_torchrun(Hosts(), 1, "-m", "harness", *words.split()) as (first, _):
        said, _ = first.communicate(timeout=PATIENCE)
    candidates = json.loads(said)["candidates"].values()
    assert [each["verdict"] for each in candidates] == ["FAULT", "FAULT", "WITHIN"]


@pytest.mark.long
def test_a_host_that_is_cut_off_in_the_middle_of_a_case_is_named_and_all_ends() -> None:
    words = f"-m harness check --candidate {SLEEPS} --sp 2 --dp 1 --cases 4 --deadline 600 --json"
    with two_hosts() as hosts, under_torchrun(hosts, 1, *words.split()) as (first, second):
        address = sleeping(second, launched=True)
        ip(f"-n {hosts.namespaces[1]} link set cable down")
        said, _ = first.communicate(timeout=4 * channel.SILENCE)
        (tally,) = json.loads(said)["candidates"].values()
        assert tally["failures"][0]["fault"]["summary"] == "node 1 is gone"
        assert second.wait(4 * channel.SILENCE) != 0
        assert left_behind(address) == []


TEST = """
from hypothesis import given
from hypothesis import strategies as st


@given(data=st.data())
def test_step(harness_cases, harness_prove, harness_pool, data):
    assert harness_pool.size == 2
    harness_prove(data.draw(harness_cases("native-local", sps=(2,))), "native-local")
"""


@pytest.mark.slow
def test_pytest_has_the_ranks_of_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=dev"]
    with under_torchrun(Hosts(), 1, *words, str(tmp_path / "test_it.py")) as (first, _):
        said, _ = first.communicate(timeout=PATIENCE)
    assert "1 passed" in said
    assert first.returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("check --ranks 4", "--ranks=4: a launcher started 2; leave it out"),
        ("check --pools 2", "--pools, --on: a launcher started the ranks of one pool; leave them"),
        ("check --on ray", "--pools, --on: a launcher started the ranks of one pool; leave them"),
        ("mutants --pools 2", "--pools, --on: a launcher started the ranks of one pool; leave"),
    ],
)
def test_other_ranks_than_those_of_the_launcher_are_refused(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.ranks.other_hosts.dismiss", lambda: None)
    for name, value in told(0, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"harness: {said}")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--harness-ranks=4", "--harness-ranks=4: a launcher started 2; leave it out"),
        ("-n2", "-n 2: a launcher started the ranks of one pool, which several workers cannot "),
    ],
)
def test_pytest_refuses_other_ranks_than_those_of_the_launcher(
    option: str, said: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.ranks.other_hosts.dismiss", lambda: None)
    for name, value in told(0, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    result = pytester.runpytest_inprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()


def test_what_has_a_usual_number_of_ranks_takes_those_of_the_launcher() -> None:
    options = options_of("mutants")
    assert options.ranks == 4
    assert fit_to_launcher(options, 8).ranks == 8
