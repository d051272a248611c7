"""The engine of actors on the hosts of a Ray cluster, each with an ordinary pool.

Each actor has a placement group of its own, with as many CPUs or GPUs of one host as it has ranks.
Hosts may come and go. If a pool's host is lost, the pool starts anew where there is room, and its
job is lost: the caller begins it again.
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
from harness.engine.processes import Open, failure_reply, raise_failure
from harness.untrusted import BadInput

# Seconds that the first pool may take to find a host.
PATIENCE = 180.0
# Seconds that an address may take to answer.
ATTEMPT = 5.0
# How many pools may end before they have ranks, for each requested pool.
MOST_NEVER_OPEN = 3


class NoCluster(BadInput):
    """No Ray cluster can be reached."""


class PoolActor:
    """An ordinary pool on the host that Ray chose for the actor."""

    def __init__(self, folder: str, opens: Open, asked: tuple[Any, ...]) -> None:
        os.chdir(folder)
        # Ray sets it for actors that compute themselves. Ranks are processes of their own.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._opens, self._asked = opens, asked
        self._stack = ExitStack()
        self._work: Any = None

    def open(self) -> Any:
        """Start the ranks; return None, or the failure to raise in the controller."""
        return self._call(self._open)

    def do(self, job: Any) -> Any:
        """Do a job; return its record, or the failure to raise in the controller."""
        return self._call(lambda: self._work(job))

    def _open(self) -> None:
        self._work = self._stack.enter_context(self._opens(*self._asked))

    def _call(self, do: Callable[[], Any]) -> Any:
        try:
            try:
                return do()
            except Exception:
                # Leave the context that opened the ranks, which explains their errors.
                with self._stack:
                    raise
        except Exception as error:  # noqa: BLE001 - it is no failure of the candidate
            return failure_reply(error)


@dataclass(slots=True, eq=False)
class PoolSlot(Generic[Job]):
    """One actor, the result that it has to return, and its job."""

    group: Any
    actor: Any
    answer: Any
    is_open: bool = False
    job: Job | None = None


class RayCluster(Generic[Job, Done]):
    """So many pools, wherever the cluster has room for them."""

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
        # A function, because the arguments of a later pool may depend on the time.
        self._opens, self._asked, self._read = opens, asked, read
        self._slots: list[PoolSlot[Job]] = []
        # How many pools ended before they had ranks.
        self._never_open = 0
        self._is_stopped = False
        self._stack = ExitStack()
        if quiet:
            # Ray's output must not get into a JSON document.
            self._stack.enter_context(redirect_stdout(sys.stderr))
        _connect()
        try:
            kind = _resource(device)
            self._bundle = {kind: float(ranks)}
            self._pools = _count_pools(pools, kind, ranks)
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
        awaited = {s.answer: s for s in self._slots if s.job is not None or not s.is_open}
        # A job needs no deadline here, because each of its cases has one.
        ready, _ = ray.wait([*awaited], timeout=None if self.is_busy else PATIENCE)
        if not ready:
            raise NoRanks(
                f"harness: no host of the Ray cluster had {_describe(self._bundle)} to spare for "
                f"{PATIENCE:g} s",
                "no host of the cluster has room for a pool",
            )
        slot = awaited[ready[0]]
        job, slot.job = slot.job, None
        try:
            reply = ray.get(ready[0])
        except (RayActorError, GetTimeoutError):
            # Most likely its host is lost.
            _end(slot)
            self._slots.remove(slot)
            if not self._is_stopped:
                self._replace(slot)
            return None if job is None else (job, None)
        if isinstance(reply, tuple):
            raise_failure(*reply)
        if job is None:
            slot.is_open = True
            return None
        return job, self._read(reply)

    def _replace(self, slot: PoolSlot[Job]) -> None:
        self._never_open += not slot.is_open
        if self._never_open > MOST_NEVER_OPEN * self._pools:
            raise NoRanks(
                "harness: pools on the Ray cluster end while they start; its logs say why",
                "pools on the cluster end while they start",
            )
        self._slots.append(self._new_slot())

    def stop(self) -> None:
        """Kill every pool: an actor cannot return what it knows in the middle of a job."""
        self._is_stopped = True
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
        remote_class: Any = ray.remote(PoolActor)
        create = remote_class.options(**options).remote
        actor = create(str(Path.cwd()), self._opens, self._asked())
        return PoolSlot(group, actor, actor.open.remote())


def _connect() -> None:
    """Connect to the cluster that RAY_ADDRESS names, or to the one of this host."""
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
        reason = " ".join(str(error).split())
        raise NoCluster(
            f"--on=ray: RAY_ADDRESS={address}: no cluster can be reached: {reason}"
        ) from None


def _resource(device: str) -> str:
    """Return the resource of which each rank takes one."""
    if device == "auto":
        return "GPU" if any(node["Resources"].get("GPU") for node in _hosts()) else "CPU"
    return "GPU" if device == "cuda" else "CPU"


def _count_pools(text: str, kind: str, ranks: int) -> int:
    """Return the requested number of pools, or for "auto" as many as there is room for."""
    if text != "auto":
        return int(text)
    return max(1, sum(int(node["Resources"].get(kind, 0)) // ranks for node in _hosts()))


def _hosts() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _describe(bundle: dict[str, float]) -> str:
    return " and ".join(f"{count:g} {kind}s" for kind, count in bundle.items())


def _end(slot: PoolSlot[Any]) -> None:
    ray.kill(slot.actor)
    remove_placement_group(slot.group)
