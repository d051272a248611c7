"""The elastic agent that starts the ranks of one launch and watches them.

It extends torch's elastic agent as torch documents it, and so does what torchrun does, with two
differences: it reports the end of each rank at once, and it does not stop the other ranks then.
They can still report what they are doing, and notice a lost peer by themselves.
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

from harness.processes.descendants import ADDRESS
from harness.processes.process_exit import exit_handle
from harness.rank_program import worker
from harness.wire.messages import Ended, Start, ToSupervisor
from harness.wire.pipe import Pipe

ROLE = "rank"
# torch warns of each rank that the agent kills, in the log that a fault quotes.
logging.getLogger(start_processes.__module__).setLevel(logging.ERROR)


class SingleHostRendezvous(RendezvousHandler):
    """A rendezvous of one host, which opens no port."""

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
    """Serves one `Start`: starts the ranks, and kills them at the next message or at its end."""

    def __init__(self, start: Start, pipe: Pipe[ToSupervisor]) -> None:
        super().__init__(
            WorkerSpec(
                role=ROLE,
                local_world_size=len(start.environments),
                rdzv_handler=SingleHostRendezvous(),
                entrypoint=sys.executable,
                max_restarts=0,
                # torch sleeps so long before it calls `_monitor_workers`, which itself waits.
                monitor_interval=1e-6,
            )
        )
        self._start, self._pipe = start, pipe
        self._ranks: Any = None

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        del worker_group
        environments = dict(enumerate(self._start.environments))
        entrypoint: Any = sys.executable
        arguments: tuple[Any, ...] = ("-m", worker.__name__)
        if self._start.should_fork:
            entrypoint, arguments = _run_forked, (self._pipe.fileno(),)
        os.chdir(self._start.folder)
        logs = Path(os.environ[ADDRESS]).with_name("logs")
        logs.mkdir()
        self._ranks = start_processes(
            name=ROLE,
            entrypoint=entrypoint,
            args=dict.fromkeys(environments, arguments),
            envs=environments,
            logs_specs=DefaultLogsSpecs(str(logs), redirects=Std.ALL),
            start_method="fork",
        )
        pids: dict[int, Any] = self._ranks.pids()
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Report the end of each rank, until the controller sends a message or closes its end."""
        del worker_group
        handles = {exit_handle(pid): (local, pid) for local, pid in self._ranks.pids().items()}
        # Epoll returns the handles in the order in which their processes ended.
        with selectors.EpollSelector() as selector, ExitStack() as stack:
            selector.register(self._pipe, selectors.EVENT_READ)
            for handle, rank in handles.items():
                stack.callback(os.close, handle)
                selector.register(handle, selectors.EVENT_READ, rank)
            while not self._pipe.inbox:
                for key, _ in selector.select():
                    if key.data is None:
                        return RunResult(WorkerState.FAILED)
                    selector.unregister(key.fileobj)
                    self._report_end(*key.data)
        return RunResult(WorkerState.FAILED)

    def _report_end(self, local: int, pid: int) -> None:
        # Leave the zombie: torch waits for its processes itself.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended
        exited = ended.si_code == os.CLD_EXITED
        self._pipe.send(Ended(local, ended.si_status * (1 if exited else -1)))

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        del worker_group
        self._shutdown()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGKILL, timeout: int = 30) -> None:
        """Kill the ranks, whatever signal torch asks for: they are never asked to tidy up."""
        del death_sig
        if self._ranks:
            self._ranks.close(signal.SIGKILL, timeout)

    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        """Make an event without the host's full name: that lookup can take minutes."""
        return Event(state, source)


def _run_forked(pipe: int) -> None:
    """Run a rank in a fork of the supervisor, without the supervisor's pipe."""
    os.close(pipe)
    worker.run()
