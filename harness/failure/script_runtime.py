"""What a script states of a failure, and how it shows that on ranks that it starts itself.

Each rank runs the same file as `python script.py` does, now with the step in it.
"""

import faulthandler
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from harness.candidates.published.library import Step
from harness.case import Case, parse
from harness.importing import without_a_search_for_garbage
from harness.ranks.descendants import bury_all_below
from harness.ranks.host import environments
from harness.ranks.messages import Order
from harness.ranks.placement import PLACEMENT, Placement
from harness.trace import Fault, Fragment, Trace, assemble

if TYPE_CHECKING:
    from harness.ranks.mesh import Meshes

PASSED, DIVERGED, FAULT = 0, 1, 3
# Lines of a stack that are read.
STACK = 9
# Where the ranks of a script leave what came of it.
FOLDER, STATUS = "HARNESS_SCRIPT", "status"
STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A failure in literals."""

    candidate: str
    # The last is judged; the same ranks run the others before it.
    cases: Sequence[str]
    # How many there are, where that is more than the cases need.
    ranks: int = 0
    # How the harness says what is wrong first.
    says: str
    # The tensor that is wrong first, and how far each of these elements of it may be off.
    key: str = ""
    allowed: float = 0.0
    # By index, in a tensor of tokens by token number first: expected, got.
    elements: Mapping[tuple[int, ...], tuple[float, float]] = field(default_factory=dict)
    loss: tuple[float, float] | None = None
    # The devices of ranks, what carries their collectives, and how many share a device.
    placement: str = "cpu gloo 1"
    # For each case.
    deadline: float = 20.0

    def start(self, script: str) -> None:
        """Return on a rank. Anywhere else start the ranks, and end when they have."""
        if FOLDER not in os.environ:
            with TemporaryDirectory(prefix="harness-") as folder:
                status = self._launched(script, Path(folder))
            sys.exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def judge(self, step: Step) -> None:
        """On a rank: run the cases, and have rank 0 say what came of the last."""
        try:
            self._judge(step, Path(os.environ[FOLDER]), int(os.environ["RANK"]))
        except Exception:  # noqa: BLE001 - it would be said late, and of one rank only
            error = traceback.format_exc()
            print(f"rank {os.environ['RANK']}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(FAULT)

    def _launched(self, script: str, folder: Path) -> int:
        ranks = max(self.ranks, *(parse(line).ranks for line in self.cases))
        environment = Placement.read(self.placement).environment()
        _run_ranks(Order(ranks=ranks, environment=environment, launch=""), script, folder)
        status = folder / STATUS
        if status.exists():
            return int(status.read_text())
        stacks = [*map(_top, sorted(folder.glob("hung.*")))]
        hung = f"hung for {self.deadline:g} s and was killed"
        what = hung if any(stacks) else "crashed, as it says above"
        self._print("FAULT", f"fault   a rank {what}", *filter(None, stacks))
        return FAULT

    def _judge(self, step: Step, folder: Path, index: int) -> None:
        from torch import distributed as dist

        from harness.ranks.mesh import Meshes
        from harness.ranks.placement import settle

        with (folder / f"hung.{index}").open("w") as stack:
            # It ends the rank, whatever that waits for.
            faulthandler.dump_traceback_later(self.deadline, exit=True, file=stack)
            device = settle(int(os.environ["LOCAL_RANK"]))
            meshes = Meshes(index, device)
            for case in map(parse, self.cases):
                meshes.build(case.dp, case.sp)
                faulthandler.dump_traceback_later(self.deadline, exit=True, file=stack)
                mine = _run(case, step, meshes) if index < case.ranks else []
                everything: list[list[Fragment]] = [[] for _ in range(dist.get_world_size())]
                dist.all_gather_object(everything, mine)
            faulthandler.cancel_dump_traceback_later()
        if index == 0:
            status = self._told(case, everything[: case.ranks])
            (folder / STATUS).write_text(str(status))
        dist.destroy_process_group()

    def _told(self, case: Case, fragments: list[list[Fragment]]) -> int:
        assembly = assemble(case, fragments)
        if isinstance(assembly, Fault):
            self._print("FAULT", f"fault   {assembly.summary}")
            return FAULT
        misfits = [f"{f.key}: {f.kind}, {f.tokens or f.ranks}" for f in assembly.misfits]
        wrong = misfits or list(self._wrong(assembly.trace))
        if wrong:
            self._print("DIVERGED", self.says, *wrong)
            return DIVERGED
        self._print("GONE", "now     no rank crashed or hung, and no element stated here is wrong")
        return PASSED

    def _wrong(self, trace: Trace) -> Iterator[str]:
        """The elements that are not what they should be."""
        for index, (expected, was) in self.elements.items():
            got = trace[self.key].values[index].item()
            # A NaN is near nothing.
            if not abs(got - expected) <= self.allowed:
                yield f"{self.key} {list(index)}: expected {expected}, got {got}; it was {was}"

    def _print(self, verdict: str, *lines: str) -> None:
        head = f"{verdict:<9} candidate {self.candidate}"
        print("\n  ".join([head, *lines]), flush=True)  # noqa: T201 - it is what a script is for


def _run_ranks(order: Order, script: str, folder: Path) -> None:
    """Until the last of them has ended; one that fails ends the others."""
    os.environ |= {FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    with without_a_search_for_garbage():
        from torch.distributed.elastic.multiprocessing import (
            DefaultLogsSpecs,
            SignalException,
            start_processes,
        )
    told = dict(enumerate(environments(order, folder)))
    # On a device this process may have started the driver, which no fork of it can do again.
    on_cpu = Placement.read(order.environment[PLACEMENT]).on_cpu
    # Python drops what a signal raises in the callbacks of a fork.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        ranks = start_processes(
            name="rank",
            entrypoint=_again if on_cpu else sys.executable,
            args=dict.fromkeys(told, (script,)),
            envs=told,
            logs_specs=DefaultLogsSpecs(str(folder)),
            start_method="fork",
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        ranks.wait(period=0.1)
    except SignalException as end:
        print(f"stopped by {end.sigval.name}", file=sys.stderr)  # noqa: T201
    finally:
        # Also those of which torch does not know yet when the signal comes.
        bury_all_below()


def _again(script: str) -> None:
    runpy.run_path(script, run_name="__main__")


def _top(file: Path) -> str:
    """Where a rank was when its time was over; below that it is torch's."""
    head, *frames = file.read_text().splitlines()[1:STACK] or [""]
    return "\n  ".join([f"rank {file.suffix[1:]}  {head}", *frames]) if head else ""


def _run(case: Case, step: Step, meshes: "Meshes") -> list[Fragment]:
    """What this rank emits."""
    from harness.watch.recorder import Recorder

    # Nobody asks how far it has come.
    with Path(os.devnull).open("wb") as nowhere:
        rank = meshes.seat(case.dp, case.sp).rank
        recorder = Recorder(rank.index, case.tokens, traced=True, progress=nowhere.fileno())
        step(case, rank, recorder)
        return recorder.fragments()
