"""The elastic agent that starts the ranks of one launch and watches over them.

It is made as torch documents for agents of one's own, and is what torchrun runs but for two
things: it says at once how each rank ended, and it leaves the others alone. They say where they
were; that their peer is gone they notice by themselves.
"""

import logging
import os
import selectors
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import RendezvousStoreInfo

from harness.ranks import worker
from harness.ranks.descendants import ADDRESS
from harness.ranks.messages import Ended, Start, ToSupervisor
from harness.ranks.pipe import Pipe
from harness.ranks.process_exit import exit_handle

ROLE = "rank"
# torch warns of each rank that we end, in a log that is quoted where a rank has written nothing.
logging.getLogger(start_processes.__module__).setLevel(logging.ERROR)


class Alone(RendezvousHandler):
    """A host that need not meet another, and opens no port for that."""

    def get_backend(self) -> str:
        return "alone"

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("", 0))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return ROLE

    def shutdown(self) -> bool:
        return True


class Agent(SimpleElasticAgent):
    """From an order until whoever gave it wants something else, or is gone."""

    def __init__(self, start: Start, pipe: Pipe[ToSupervisor]) -> None:
        super().__init__(
            WorkerSpec(
                role=ROLE,
                local_world_size=len(start.environments),
                rdzv_handler=Alone(),
                entrypoint=sys.executable,
                max_restarts=0,
                # It is slept before the workers are looked after, which waits as long as it takes.
                monitor_interval=1e-6,
            )
        )
        self._start, self._pipe = start, pipe
        self._ranks: Any = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        del worker_group
        environments = dict(enumerate(self._start.environments))
        how: tuple[Any, ...] = ("-m", worker.__name__)
        if self._start.forks:
            how = (self._pipe.fileno(),)
        os.chdir(self._start.folder)
        logs = Path(os.environ[ADDRESS]).with_name("logs")
        logs.mkdir()
        self._ranks = start_processes(
            name=ROLE,
            entrypoint=_rank if self._start.forks else sys.executable,
            args=dict.fromkeys(environments, how),
            envs=environments,
            logs_specs=DefaultLogsSpecs(str(logs), redirects=Std.ALL),
            start_method="fork",
        )
        pids: dict[int, Any] = self._ranks.pids()
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Until the next order; of each that ends meanwhile it is told how."""
        del worker_group
        handles = {exit_handle(pid): (local, pid) for local, pid in self._ranks.pids().items()}
        # Epoll reports several that are ready in the order in which they became so.
        with selectors.EpollSelector() as selector, ExitStack() as stack:
            selector.register(self._pipe, selectors.EVENT_READ)
            for handle, rank in handles.items():
                stack.callback(os.close, handle)
                selector.register(handle, selectors.EVENT_READ, rank)
            while not self._pipe.waiting:
                for key, _ in selector.select():
                    if key.data is None:
                        return RunResult(WorkerState.FAILED)
                    selector.unregister(key.fileobj)
                    self._tell_end_of(*key.data)
        return RunResult(WorkerState.FAILED)

    def _tell_end_of(self, local: int, pid: int) -> None:
        # It stays, for those who started it to wait for.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended
        exited = ended.si_code == os.CLD_EXITED
        self._pipe.send(Ended(local, ended.si_status * (1 if exited else -1)))

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        del worker_group
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 30) -> None:
        """They are never asked to tidy themselves."""
        del death_sig
        if self._ranks:
            self._ranks.close(signal.SIGKILL, timeout)

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """Without the host's full name: where no name server answers, that takes minutes."""
        return Event(state, source)


def _rank(pipe: int) -> None:
    """What a forked rank is."""
    os.close(pipe)
    worker.run()
