"""Ranks on two hosts are judged, named and ended like those on one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cli import main
from harness.judge import evaluate
from harness.ranks.handshake import Challenge, proof
from harness.ranks.node import Node, Refused
from harness.ranks.nodes import Nodes
from harness.ranks.pool import RankPool
from harness.ranks.wire import encode
from harness.trace import Fault, Kind
from harness.verdict import Verdict
from properties.helpers.first_host import CASE, SLEEPS
from properties.helpers.places import ROOT
from properties.helpers.sockets import listening
from properties.helpers.wait import eventually

FIRST_HOST = (sys.executable, "-m", "properties.helpers.first_host")
TOKEN = "known on these hosts only"
MARGIN = 10.0

Leftovers = Callable[[str], list[str]]
AddressOf = Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where the controller is to be reached, and what a command begins with to run on a host."""

    endpoint: str
    first: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    # Theirs in a network where nothing else is.
    addresses: tuple[str, ...] = ()


def one_host() -> Hosts:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Hosts(f"127.0.0.1:{free.getsockname()[1]}")


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
        first, other = inside
        yield Hosts("10.7.7.1:29400", first, other, ("10.7.7.1", "10.7.7.2"))


def ip(line: str) -> None:
    subprocess.run(["ip", *line.split()], check=True, capture_output=True)


@pytest.fixture(params=["two network namespaces", "one host"])
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    if request.param == "one host":
        yield one_host()
        return
    with two_hosts() as both:
        yield both


@contextmanager
def running(*command: str, token: str = TOKEN) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "HARNESS_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def join(endpoint: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "harness", "join", endpoint)


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def supervisor_of(process: subprocess.Popen[str]) -> int:
    (child,) = children(process.pid)
    return child


def wait_for_rank_3(address: str) -> None:
    progress = Path(address).parent / "progress.3"
    assert eventually(lambda: b"case received" in progress.read_bytes())


def test_two_hosts_judge_as_one_and_nothing_on_them_outlives_the_controller(
    hosts: Hosts, address_of: AddressOf, left_behind: Leftovers
) -> None:
    first = (*hosts.first, *FIRST_HOST, hosts.endpoint)
    with running(*first) as controller, running(*hosts.other, *join(hosts.endpoint)) as other:
        assert controller.stdout
        clean, mutant, supervisor = (controller.stdout.readline().strip() for _ in range(3))
        assert (clean, mutant) == ("WITHIN", "DIVERGED")
        addresses = [address_of(int(supervisor)), address_of(supervisor_of(other))]
        assert len(set(addresses)) == 2
        wait_for_rank_3(addresses[1])
        pids = int(supervisor), supervisor_of(other)
        for host, pid in zip(hosts.addresses, pids, strict=False):
            assert listening(pid, *children(pid)) == {host}
        controller.kill()
        _, said = other.communicate(timeout=MARGIN)
        assert said == "harness: the controller is gone; every rank here has ended\n"
        assert other.returncode == 3
        assert [left_behind(address) for address in addresses] == [[], []]


def test_a_death_on_another_host_is_named_and_the_host_goes_on_until_it_leaves(
    monkeypatch: pytest.MonkeyPatch, address_of: AddressOf, left_behind: Leftovers
) -> None:
    monkeypatch.setenv("HARNESS_TOKEN", TOKEN)
    endpoint = one_host().endpoint
    with (
        running(*join(endpoint)) as other,
        RankPool(4, nodes=Nodes(2, endpoint), start_deadline=60) as pool,
    ):

        def fault_of(blow: Callable[[], None]) -> Fault:
            """In the middle of a case."""
            assert pool.wait_until_ready() is None
            address = address_of(supervisor_of(other))
            pool.submit(CASE, SLEEPS)
            wait_for_rank_3(address)
            blow()
            fault = pool.collect()
            assert isinstance(fault, Fault)
            assert left_behind(address) == []
            return fault

        fault = fault_of(lambda: os.kill(pool.pids()[4], signal.SIGKILL))
        assert (fault.kind, fault.rank) == (Kind.DIED, 3)
        assert fault.summary == "rank 3 died, killed by SIGKILL"
        assert fault.last_key == "case received"
        assert fault.ranks[3] == "rank 3: gone or not answering; last key reached: case received"
        assert set(fault.stacks) == {0, 1, 2}
        assert evaluate(CASE, "native-local", pool).verdict is Verdict.WITHIN

        def with_its_host() -> None:
            """Which has no time left to tell of the rank."""
            other.send_signal(signal.SIGSTOP)
            os.kill(pool.pids()[4], signal.SIGKILL)
            other.kill()

        fault = fault_of(with_its_host)
        assert (fault.kind, fault.summary) == (Kind.LAUNCHER, "node 1 (127.0.0.1) left")
        assert fault.ranks[3].endswith("last key reached: unknown, its host did not tell")


def test_what_has_not_come_up_in_time_is_told_and_who_joined_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARNESS_TOKEN", TOKEN)
    # On a busy machine a host may need longer to join.
    for deadline in (5.0, 40.0):
        endpoint = one_host().endpoint
        with running(*join(endpoint)) as right, running(*join(endpoint), token="a guess") as wrong:
            with RankPool(3, nodes=Nodes(3, endpoint), start_deadline=deadline) as pool:
                fault = pool.wait_until_ready()
            said = [process.communicate(timeout=MARGIN)[1] for process in (right, wrong)]
        if fault and "only 1 of 3" not in fault.summary:
            break
    assert fault
    assert fault.kind is Kind.START
    within = f"not all ranks were up within {deadline:g} s"
    assert fault.summary == f"{within}: only 2 of 3 nodes joined"
    assert said[0] == "harness: the controller is done; every rank here has ended\n"
    assert said[1].endswith("refused this host: the token differs, or all hosts have joined\n")
    assert (right.returncode, wrong.returncode) == (0, 2)


def test_a_controller_that_does_not_know_the_token_is_not_obeyed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = Node(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN)
        connection, _ = listener.accept()
        with connection:
            for words in (
                Challenge().frame,
                encode("welcome", proof=proof("a guess", "controller")),
                encode("launch", ranks=1),
            ):
                connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            with pytest.raises(Refused, match="does not know the token"):
                node.serve()
            heard = connection.recv(1 << 12)
            assert b'"join"' in heard
            assert TOKEN.encode() not in heard


def test_a_controller_that_never_says_who_it_is_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.ranks.node.PATIENCE", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = Node(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN)
        connection, _ = listener.accept()
        # A byte now and then does not keep it waiting.
        dripping = threading.Thread(target=drip, args=(connection,), daemon=True)
        dripping.start()
        with pytest.raises(Refused, match="gave no answer within 1 s"):
            node.serve()
        dripping.join()


def drip(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        for byte in Challenge().frame:
            connection.sendall(bytes([byte]))
            time.sleep(0.2)


def test_a_command_that_is_not_about_several_hosts_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HARNESS_TOKEN", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        for line, said in {
            "check --nodes 2": "--nodes=2: use at least 2, together with --endpoint",
            "check --nodes 0": "--nodes=0: use at least 2",
            f"check --endpoint {taken}": "--nodes=1: use at least 2",
            f"check --ranks 9 --nodes 2 --endpoint {taken}": "--ranks=9: use a multiple of",
            "check --nodes 2 --endpoint here": "--endpoint=here: use HOST:PORT",
            f"check --nodes 2 --endpoint {taken}": f"--endpoint={taken}: cannot listen there: ",
            f"join {taken}": "HARNESS_TOKEN is not set",
        }.items():
            assert main([*line.split(), "--device", "cpu"][: None if "check" in line else 2]) == 2
            assert capsys.readouterr().err.startswith(f"harness: {said}")
