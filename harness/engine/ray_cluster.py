"""Pools on the hosts of a Ray cluster, that do one job after the other.

Each has a placement group of its own, with as many CPUs or GPUs of one host as it has ranks. In it
lives an actor with an ordinary pool. Hosts may come and go: a pool whose host is gone starts anew
where there is room, and what it was about is judged by another.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from harness.engine.engine import Done, Job
from harness.engine.no_ranks import NoRanks
from harness.engine.processes import NO_RANKS, REFUSED, Open
from harness.unexpected import told_in_full
from harness.untrusted import BadInput

# How long the first pool may take to find a host.
PATIENCE = 180.0
# And how long an address may take to answer.
ATTEMPT = 5.0
# Pools that are gone before they have ranks, for each that is wanted.
MOST_NEVER_OPEN = 3


class NoCluster(BadInput):
    """No Ray cluster can be reached."""


class PoolActor:
    """What an actor is: an ordinary pool on whichever host it was given."""

    def __init__(self, folder: str, opens: Open, asked: tuple[Any, ...]) -> None:
        os.chdir(folder)
        # It says so for what computes in its actors. Ranks are processes of their own.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._opens, self._asked = opens, asked
        self._stack = ExitStack()
        self._work: Any = None

    def open(self) -> Any:
        """Nothing once there are ranks to be asked, or what is to be said instead."""
        return self._told(self._open)

    def do(self, job: Any) -> Any:
        """The record of what becomes of it, or the same."""
        return self._told(lambda: self._work(job))

    def _open(self) -> None:
        self._work = self._stack.enter_context(self._opens(*self._asked))

    def _told(self, do: Callable[[], Any]) -> Any:
        try:
            try:
                return do()
            except Exception:
                # The pool's own context turns an error of its ranks into words.
                with self._stack:
                    raise
        except BadInput as error:
            return REFUSED, str(error), ""
        except NoRanks as error:
            return NO_RANKS, str(error), error.summary
        except Exception as error:  # noqa: BLE001 - it says nothing of the candidate
            return NO_RANKS, f"harness: {told_in_full(error)}", f"{type(error).__name__}: {error}"


@dataclass(slots=True, eq=False)
class PoolSlot(Generic[Job]):
    """One actor, what it is waited for, and the job that it has."""

    group: Any
    actor: Any
    answer: Any
    is_open: bool = False
    job: Job | None = None


class RayCluster(Generic[Job, Done]):
    """So many pools, wherever there is room for them."""

    def __init__(
        self,
        opens: Open,
        asked: Callable[[], tuple[Any, ...]],
        ranks: int,
        read: Callable[[Any], Done],
        *,
        pools: str,
        device: str,
        quiet: bool,
    ) -> None:
        # What is asked depends on how late it is.
        self._opens, self._asked, self._read = opens, asked, read
        self._slots: list[PoolSlot[Job]] = []
        # How many were gone before they had ranks.
        self._never_open = 0
        self._stopped = False
        self._stack = ExitStack()
        if quiet:
            # What Ray prints is no part of a document.
            self._stack.enter_context(redirect_stdout(sys.stderr))
        _connect()
        try:
            kind = _kind(device)
            self._bundle = {kind: float(ranks)}
            self._pools = _pools(pools, kind, ranks)
            for _ in range(self._pools):
                self._slots.append(self._new_slot())
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for slot in self._slots:
            _end(slot)
        self._slots.clear()
        ray.shutdown()
        self._stack.close()

    @property
    def count(self) -> int:
        return self._pools

    @property
    def has_room(self) -> bool:
        return any(slot.is_open and slot.job is None for slot in self._slots)

    @property
    def is_busy(self) -> bool:
        return any(slot.job is not None for slot in self._slots)

    def begin(self, job: Job) -> None:
        slot = next(slot for slot in self._slots if slot.is_open and slot.job is None)
        slot.job, slot.answer = job, slot.actor.do.remote(job)

    def finished(self) -> tuple[Job, Done | None] | None:
        waited = {s.answer: s for s in self._slots if s.job is not None or not s.is_open}
        # An actor with a job has no deadline here: each of its cases has a time limit.
        ready, _ = ray.wait([*waited], timeout=None if self.is_busy else PATIENCE)
        if not ready:
            raise NoRanks(
                f"harness: no host of the Ray cluster had {_words(self._bundle)} to spare for "
                f"{PATIENCE:g} s",
                "no host of the cluster has room for a pool",
            )
        slot = waited[ready[0]]
        job, slot.job = slot.job, None
        try:
            said = ray.get(ready[0])
        except (RayActorError, GetTimeoutError):
            # Gone with its host, most likely.
            _end(slot)
            self._slots.remove(slot)
            if not self._stopped:
                self._replace(slot)
            return None if job is None else (job, None)
        if isinstance(said, tuple):
            what, text, summary = said
            raise BadInput(text) if what == REFUSED else NoRanks(text, summary)
        if job is None:
            slot.is_open = True
            return None
        return job, self._read(said)

    def _replace(self, slot: PoolSlot[Job]) -> None:
        self._never_open += not slot.is_open
        if self._never_open > MOST_NEVER_OPEN * self._pools:
            raise NoRanks(
                "harness: pools on the Ray cluster end while they start; its logs say why",
                "pools on the cluster end while they start",
            )
        self._slots.append(self._new_slot())

    def stop(self) -> None:
        """What they have judged of a lot by then nobody can ask them."""
        self._stopped = True
        for slot in self._slots:
            _end(slot)

    def _new_slot(self) -> PoolSlot[Job]:
        group = placement_group([self._bundle], strategy="STRICT_PACK")
        options = {
            "num_cpus": self._bundle.get("CPU", 0),
            "num_gpus": self._bundle.get("GPU", 0),
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group),
            "max_restarts": 0,
        }
        host: Any = ray.remote(PoolActor)
        actor = host.options(**options).remote(str(Path.cwd()), self._opens, self._asked())
        return PoolSlot(group, actor, actor.open.remote())


def _connect() -> None:
    """To the cluster that RAY_ADDRESS names, or the one of this host."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        # Ray itself would try for minutes.
        try:
            socket.create_connection((host, int(port)), ATTEMPT).close()
        except OSError:
            raise NoCluster(
                f"--on=ray: RAY_ADDRESS={address}: nothing answers there; start Ray with "
                "`ray start --head`, or name another address"
            ) from None
    try:
        ray.init(
            address,
            logging_level=logging.ERROR,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
        )
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        said = " ".join(str(error).split())
        raise NoCluster(
            f"--on=ray: RAY_ADDRESS={address}: no cluster can be reached: {said}"
        ) from None


def _kind(device: str) -> str:
    """What a rank takes one of."""
    if device == "auto":
        return "GPU" if any(node["Resources"].get("GPU") for node in _hosts()) else "CPU"
    return "GPU" if device == "cuda" else "CPU"


def _pools(text: str, kind: str, ranks: int) -> int:
    """As many as were asked for, or as many as there is room for."""
    if text != "auto":
        return int(text)
    return max(1, sum(int(node["Resources"].get(kind, 0)) // ranks for node in _hosts()))


def _hosts() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _words(bundle: dict[str, float]) -> str:
    return " and ".join(f"{count:g} {kind}s" for kind, count in bundle.items())


def _end(slot: PoolSlot[Any]) -> None:
    ray.kill(slot.actor)
    remove_placement_group(slot.group)
