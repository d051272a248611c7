"""Pools on a Ray cluster judge the same cases, with the same report, and losses cost none."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.engine.no_ranks import NoRanks
from harness.engine.processes import NO_RANKS, REFUSED
from harness.engine.ray_cluster import PoolActor
from harness.ranks.pool import CannotStart
from harness.trace import Fault, Kind
from harness.untrusted import BadInput
from properties.helpers.commands import HARNESS, campaign_of, run_in_background, run_to_end
from properties.helpers.places import ROOT
from properties.helpers.stores import stored_in
from properties.helpers.wait import PATIENCE, eventually

CLUSTER = (sys.executable, "-m", "properties.helpers.ray_cluster")
CHECK = [
    *("check", "--candidate", "native-local", "--candidate", "waits.py:WAITS", "--ranks", "2"),
    *("--sp", "2", "--dp", "1", "--dtype", "fp64", "--set", "layers=1", "--cases", "210"),
    *("--json", "--no-diagnose"),
]
# Runs a case of the third lot only once a file exists.
WAITS = """
import os, time
from pathlib import Path
from harness.candidates.own.native import LocalDialect

class Waits(LocalDialect):
    name = "waits"

    def run(self, case, rank, emit):
        folder = Path(os.environ.get("HERE", "."))
        while case.seed >> 17 == 2 and not (folder / "go").exists():
            (folder / f"waits-{os.getpid()}").touch()
            time.sleep(0.05)
        super().run(case, rank, emit)

WAITS = Waits()
"""


@contextmanager
def cluster() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        CLUSTER,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            assert process.stdin
            process.stdin.close()
            process.wait(PATIENCE)


def on(address: str, folder: Path, *words: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run the campaign on a cluster."""
    (folder / "waits.py").write_text(WAITS)
    command = (*HARNESS, *CHECK, "--on", "ray", *words)
    return run_in_background(*command, cwd=folder, RAY_ADDRESS=address)


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def have_begun(folder: Path, ranks: int) -> bool:
    return len([*folder.glob("waits-*")]) >= ranks


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.long
@pytest.mark.parametrize("lost", ["a host", "an actor"])
def test_a_cluster_that_loses_a_host_or_an_actor_reports_the_same_as_one_pool(
    lost: str, tmp_path: Path
) -> None:
    (alone := tmp_path / "alone").mkdir()
    (alone / "waits.py").write_text(WAITS)
    (alone / "go").touch()
    one = run_to_end(*HARNESS, *CHECK, cwd=alone)
    (folder := tmp_path / "cluster").mkdir()
    words = ("--pools", "auto", "--resume", "kept")
    with cluster() as ray, on(address_of(ray), folder, *words) as run:
        assert eventually(lambda: have_begun(folder, 2))
        if lost == "a host":
            assert ray.stdin
            ray.stdin.write("remove\n")
            ray.stdin.flush()
            assert address_of(ray) == "removed"
        else:
            rank = int(next(folder.glob("waits-*")).name.partition("-")[2])
            # The parent of a rank is its supervisor, and the actor the parent of that.
            os.kill(parent_of(parent_of(rank)), signal.SIGKILL)
            assert eventually(lambda: not Path(f"/proc/{rank}").exists())
        (folder / "go").touch()
        output, log = run.communicate(timeout=PATIENCE)
    assert run.returncode == one.returncode == 0, log
    assert campaign_of(output) == campaign_of(one.stdout)


@pytest.mark.long
def test_other_commands_can_have_their_pools_on_a_cluster_too(tmp_path: Path) -> None:
    stored_in(tmp_path / "store")
    verify = ("golden", "verify", "--store", "store", "--sp", "1,2", "--candidate", "native-local")
    mutants = ("mutants", "--only", "B14,B43", "--cases", "20")
    with cluster() as ray:
        address = address_of(ray)
        for words in (verify, mutants):
            command = (*HARNESS, *words, "--ranks", "2", "--json")
            local = run_to_end(*command, cwd=tmp_path)
            pools = ("--on", "ray", "--pools", "2")
            with run_in_background(*command, *pools, cwd=tmp_path, RAY_ADDRESS=address) as run:
                output, log = run.communicate(timeout=PATIENCE)
            assert run.returncode == local.returncode == 0, log
            assert without_seconds(output) == without_seconds(local.stdout)


def without_seconds(document: str) -> Any:
    """Read a document without any field about how long something took."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: strip(each) for name, each in value.items() if "seconds" not in name}
        return [strip(each) for each in value] if isinstance(value, list) else value

    return strip(json.loads(document))


@pytest.mark.long
def test_nothing_on_a_cluster_outlives_the_command(tmp_path: Path) -> None:
    with cluster() as ray, on(address_of(ray), tmp_path, "--pools", "2") as run:
        assert eventually(lambda: have_begun(tmp_path, 2))
        pids = [int(file.name.partition("-")[2]) for file in tmp_path.glob("waits-*")]
        run.send_signal(signal.SIGKILL)
        assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.parametrize(
    ("error", "reply"),
    [
        (BadInput("--sp=9: no"), (REFUSED, "--sp=9: no", "")),
        (CannotStart(Fault(kind=Kind.START, summary="no ranks")), (NO_RANKS, "no", "ranks")),
        (RuntimeError("late"), (NO_RANKS, None, "RuntimeError: late")),
    ],
)
def test_an_error_during_a_job_is_explained_by_the_context_that_opened_the_ranks(
    error: Exception, reply: tuple[str, str | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def opens() -> Iterator[Callable[[Exception], None]]:
        def work(error: Exception) -> None:
            raise error

        try:
            yield work
        except CannotStart:
            raise NoRanks("no", "ranks") from None

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    actor = PoolActor(str(ROOT), opens, ())
    assert actor.open() is None
    kind, text, summary = actor.do(error)
    assert (kind, summary) == (reply[0], reply[2])
    assert text == reply[1] or (reply[1] is None and text.startswith("harness: "))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "message"),
    [
        (
            "127.0.0.1:1",
            "--on=ray: RAY_ADDRESS=127.0.0.1:1: nothing answers there; start ",
        ),
        ("nowhere", "--on=ray: RAY_ADDRESS=nowhere: no cluster can be reached: "),
    ],
)
def test_a_cluster_that_does_not_answer_is_bad_input_at_once(
    address: str, message: str, tmp_path: Path
) -> None:
    with on(address, tmp_path) as run:
        _, log = run.communicate(timeout=PATIENCE)
    assert run.returncode == 2
    assert log.startswith(f"harness: {message}")
