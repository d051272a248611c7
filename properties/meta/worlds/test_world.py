"""Ranks on several hosts of a launcher are judged, named in faults and ended like any others."""

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
from harness.ranks.launch import Launch
from harness.trace import Fault, Kind
from harness.verdict import Verdict
from harness.wire.frames import Reader, encode
from harness.wire.link import Link
from harness.wire.messages import (
    BytesFromRank,
    Connected,
    Hello,
    HostReport,
    Order,
)
from harness.worlds import channel
from harness.worlds.host_keeper import HostKeeper
from harness.worlds.other_hosts import OtherHosts
from harness.worlds.world import IncompleteWorld, World
from properties.helpers.alive import address_of, left_behind
from properties.helpers.another_host import children, free_port, pool_with_another_host, told
from properties.helpers.commands import (
    HARNESS,
    campaign_of,
    options_of,
    run_in_background,
    run_to_end,
)
from properties.helpers.judging import evaluate
from properties.helpers.places import PLANTED
from properties.helpers.wait import PATIENCE, eventually

pytest_plugins = ["pytester"]

CASE = parse("case/1 rows=5:11111,4:1011 sp=2")
SLEEPS = f"{PLANTED / 'faulty.py'}:SLEEPS"


def wait_for_rank_1(other: subprocess.Popen[str], *, launched: bool = False) -> str:
    """Wait until rank 1 is in the middle of a case; return the address of its supervisor."""
    pid = other.pid
    if launched:
        # `other` is the launcher, and the host keeper its child.
        assert eventually(lambda: bool(children(other.pid)))
        (pid,) = children(other.pid)
    assert eventually(lambda: bool(children(pid)))
    (supervisor,) = children(pid)
    address = address_of(supervisor)
    progress = Path(address).parent / "progress.1"
    assert eventually(lambda: progress.exists() and b"case received" in progress.read_bytes())
    return address


@pytest.mark.slow
def test_a_rank_that_dies_on_another_host_is_named_and_the_host_serves_on() -> None:
    with pool_with_another_host() as (pool, other, nodes):
        assert pool.wait_until_ready() is None
        pool.submit(CASE, locate(SLEEPS))
        address = wait_for_rank_1(other)
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


def test_connections_with_the_same_number_on_two_other_hosts_are_kept_apart() -> None:
    launch, nodes = launch_on_three_hosts()
    for rank, node in enumerate(nodes, start=1):
        launch._take_in_from_node(node, Connected("", 0))
        assert launch._take_in_from_node(node, hello(rank)) == []
    assert {rank: link.host for rank, link in launch.links.items()} == {1: "node 1", 2: "node 2"}


def test_a_process_that_pretends_to_be_a_rank_of_another_host_is_refused() -> None:
    launch, (_, second) = launch_on_three_hosts()
    launch._take_in_from_node(second, Connected("", 0))
    (event,) = launch._take_in_from_node(second, hello(1))
    assert event.problem == "an unknown process connected: it is no rank of this pool"
    assert launch.links == {}


def launch_on_three_hosts() -> tuple[Launch, list[Link]]:
    """Return a launch of three hosts with a rank each, and the links of the other two hosts."""
    launch, nodes = object.__new__(Launch), object.__new__(OtherHosts)
    launch.order = nodes._order = Order(ranks=1, environment={}, launch="", nodes=3)
    launch.size, launch.links, launch.nodes, launch._relayed = 3, {}, nodes, {}
    nodes._channels = cast("Any", {1: None, 2: None})
    return launch, [Link(None, host=f"node {node}", node=node) for node in (1, 2)]


def hello(rank: int) -> BytesFromRank:
    return BytesFromRank("", 0, encode(Hello("", rank, 7)))


@pytest.mark.slow
def test_the_end_of_a_rank_on_another_host_is_noticed_though_its_children_live_on() -> None:
    with pool_with_another_host() as (pool, *_):
        fault = pool.run(CASE, locate(f"{PLANTED / 'faulty.py'}:LEAVES_CHILDREN"))
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.summary) == (Kind.DIED, "rank 1 died, exit status 7")


def test_the_last_bytes_of_a_rank_are_passed_on_before_the_news_of_its_end() -> None:
    sent: list[BytesFromRank | HostReport] = []
    reader = Reader[BytesFromRank | HostReport](BytesFromRank | HostReport)
    channel = SimpleNamespace(
        socket=socket.socket(), send=lambda frame: sent.extend(reader.feed(frame))
    )
    supervisor = SimpleNamespace(pipe=object(), process=SimpleNamespace(returncode=None))
    host = SimpleNamespace(
        supervisor=supervisor,
        listener=None,
        read_ends=lambda: [1],
        read_all=dict,
        ended={1: "exit status 7"},
    )
    rank_end, keeper_end = socket.socketpair()
    with channel.socket, rank_end, keeper_end:
        keeper = HostKeeper(cast("Any", channel))
        keeper._host, keeper._connections = cast("Any", host), {0: keeper_end}
        keeper._selector.register(keeper_end, selectors.EVENT_READ, 0)
        rank_end.sendall(b"the last word")
        keeper._read(cast("Any", host), supervisor.pipe, None)
        keeper._selector.close()
    assert sent == [
        BytesFromRank("", 0, b"the last word"),
        HostReport("", "", {}, {"1": "exit status 7"}),
    ]


@pytest.mark.slow
def test_a_lost_host_is_named_and_every_later_case_has_that_fault_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than the other host is silent while it is alive.
    monkeypatch.setattr(channel, "SILENCE", 2 * channel.BEAT)
    with pool_with_another_host() as (pool, other, _):
        assert pool.wait_until_ready() is None
        pool.submit(CASE, locate(SLEEPS))
        wait_for_rank_1(other)
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
        run_in_background(*command, **told(0, 2, port)) as controller,
        run_in_background(*command, **told(1, 2, port)) as other,
    ):
        address = wait_for_rank_1(other)
        controller.kill()
        assert other.wait(PATIENCE) == 3
        assert left_behind(address) == []


@pytest.mark.slow
def test_further_processes_of_one_host_end_at_once_and_bad_input_ends_the_first() -> None:
    port, words = free_port(), ("golden", "verify", "--store", "nowhere")
    with (
        run_in_background(*HARNESS, *words, **told(0, 3, port, 0)) as first,
        run_in_background(*HARNESS, *words, **told(1, 3, port, 0)) as second,
        run_in_background(*HARNESS, *words, **told(2, 3, port, 0)) as third,
    ):
        assert [second.wait(PATIENCE), third.wait(PATIENCE)] == [0, 0]
        assert first.wait(PATIENCE) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "first"}, "RANK=first WORLD_SIZE=2 MASTER_PORT="),
        ({"MASTER_PORT": "x"}, "RANK=1 WORLD_SIZE=2 MASTER_PORT=x: use whole numbers, or unset"),
    ],
)
def test_impossible_variables_of_a_launcher_are_refused(
    change: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in {**told(1, 2, free_port()), **change}.items():
        monkeypatch.setenv(name, value)
    assert main(["check"]) == 2
    assert capsys.readouterr().err.startswith(f"harness: {message}")


def test_a_single_process_and_a_rank_have_no_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in told(0, 1, 1).items():
        monkeypatch.setenv(name, value)
    assert World.here() is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert World.here() == World(0, 2, "127.0.0.1", 1)
    monkeypatch.setenv("HARNESS_SOCKET", "here")
    assert World.here() is None


@pytest.mark.slow
def test_missing_and_uneven_processes_of_a_launcher_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.worlds.world.PATIENCE", timedelta(seconds=1))
    world = World(0, 3, "127.0.0.1", free_port())
    with pytest.raises(IncompleteWorld, match="nothing answers there"):
        world.connect()
    served = world.serve_store()
    assert served
    with pytest.raises(IncompleteWorld, match="WORLD_SIZE=3: process 1 did not come within 1 s"):
        world.hosts(world.connect())
    store = world.connect()
    for rank in (1, 2):
        store.set(f"host/{rank}", "another")
    uneven = r"hosts have \[1, 2\] processes; start as many on each"
    with pytest.raises(IncompleteWorld, match=uneven):
        world.hosts(store)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Two hosts: the address of the first, and the words that run a command inside each."""

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
    """Make two network namespaces with one cable between them, which gloo has to use."""
    names = [f"harness-{os.getpid()}-{letter}" for letter in "ab"]
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
    """Run a command under torchrun on two hosts; yield the process on each."""
    port = free_port() if hosts.address == "127.0.0.1" else 29400
    store = f"--nnodes 2 --master-addr {hosts.address} --master-port {port}".split()
    torchrun = (sys.executable, "-m", "torch.distributed.run", *store, f"--nproc-per-node={ranks}")
    with ExitStack() as stack:
        second, first = (
            stack.enter_context(
                run_in_background(*hosts.inside[node], *torchrun, f"--node-rank={node}", *words)
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
def test_two_hosts_under_torchrun_report_the_same_as_one_host(tmp_path: Path) -> None:
    alone = run_to_end(*HARNESS, *CHECK, cwd=tmp_path)
    with two_hosts() as hosts, under_torchrun(hosts, 2, "-m", "harness", *CHECK) as (first, _):
        output, log = first.communicate(timeout=PATIENCE)
    together = campaign_of(output)
    for each in (together, one := campaign_of(alone.stdout)):
        for failure in each["candidates"]["mutants.B14"]["failures"]:
            # The number of ranks may differ, and how to show the failure again.
            for name in ("bundle", "replay", "explanation", "ranks", "printed"):
                failure.pop(name)
    assert together == one
    assert "exit status 1: mutants.B14 is DIVERGED on case/1 " in log
    assert first.returncode == alone.returncode == 1


@pytest.mark.slow
def test_under_torchrun_a_crash_and_a_hang_are_faults_and_the_campaign_goes_on() -> None:
    faulty = PLANTED / "faulty.py"
    words = (
        f"check --candidate {faulty}:DIES --candidate {faulty}:SPINS --candidate "
        "native-local --sp 2 --dp 1 --cases 2 --json --no-diagnose --deadline 3"
    )
    with under_torchrun(Hosts(), 1, "-m", "harness", *words.split()) as (first, _):
        output, _ = first.communicate(timeout=PATIENCE)
    candidates = json.loads(output)["candidates"].values()
    failures = [each["failures"] for each in candidates]
    assert [each["verdict"] for each in candidates] == ["FAULT", "FAULT", "WITHIN"], failures


@pytest.mark.long
def test_a_host_that_loses_its_network_is_named_and_everything_ends() -> None:
    words = f"-m harness check --candidate {SLEEPS} --sp 2 --dp 1 --cases 4 --deadline 600 --json"
    with two_hosts() as hosts, under_torchrun(hosts, 1, *words.split()) as (first, second):
        address = wait_for_rank_1(second, launched=True)
        ip(f"-n {hosts.namespaces[1]} link set cable down")
        output, _ = first.communicate(timeout=4 * channel.SILENCE)
        (tally,) = json.loads(output)["candidates"].values()
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
def test_a_pytest_session_uses_the_ranks_of_a_launcher(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=dev"]
    with under_torchrun(Hosts(), 1, *words, str(tmp_path / "test_it.py")) as (first, _):
        output, _ = first.communicate(timeout=PATIENCE)
    assert "1 passed" in output
    assert first.returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check --ranks 4", "--ranks=4: a launcher started 2; leave it out"),
        ("check --pools 2", "--pools, --on: a launcher started the ranks of one pool; leave them"),
        ("check --on ray", "--pools, --on: a launcher started the ranks of one pool; leave them"),
        ("mutants --pools 2", "--pools, --on: a launcher started the ranks of one pool; leave"),
    ],
)
def test_options_that_contradict_the_launcher_are_refused(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.worlds.other_hosts.release_hosts", lambda: None)
    for name, value in told(0, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    assert main(words.split()) == 2
    assert capsys.readouterr().err.startswith(f"harness: {message}")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--harness-ranks=4", "--harness-ranks=4: a launcher started 2; leave it out"),
        ("-n2", "-n 2: a launcher started the ranks of one pool, which several workers cannot "),
    ],
)
def test_pytest_refuses_options_that_contradict_the_launcher(
    option: str, message: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.worlds.other_hosts.release_hosts", lambda: None)
    for name, value in told(0, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    result = pytester.runpytest_inprocess(option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()


def test_a_default_number_of_ranks_gives_way_to_that_of_the_launcher() -> None:
    options = options_of("mutants")
    assert options.ranks == 4
    assert fit_to_launcher(options, 8).ranks == 8
