"""The part of a failure script that it imports: start ranks, and check the wrong numbers there.

1. Started by hand, the script calls `start`, which starts the ranks and exits with their status.
2. Each rank runs the same file. There `start` returns, the step is defined, and `judge` runs it.
3. Rank 0 prints the result and writes the exit status into a folder that all share.
"""

import faulthandler
import linecache
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import TYPE_CHECKING

from harness.candidates.published.library import Step
from harness.case import Case, parse
from harness.importing import without_a_search_for_garbage
from harness.processes.descendants import bury_all_below
from harness.rank_program.placement import PLACEMENT, Placement
from harness.supervision.host import rank_environments
from harness.trace import Assembly, Fault, Fragment, Trace, assemble
from harness.wire.messages import Order

if TYPE_CHECKING:
    from harness.rank_program.mesh import Meshes

PASSED, DIVERGED, FAULT = 0, 1, 3
# How many lines of a hung rank's stack are read: those below are torch's.
STACK = 9
# The variable with the folder that ranks write into, and the file with the exit status there.
FOLDER, STATUS = "HARNESS_SCRIPT", "status"
STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A failure as a script states it, in literals."""

    candidate: str
    # The last is judged; the same ranks run the others before it.
    cases: Sequence[str]
    # How many ranks there are, if that is more than the cases need.
    ranks: int = 0
    # The harness's sentence on what is wrong first.
    says: str
    # The tensor that is wrong first, and how far each of these elements of it may be off.
    key: str = ""
    allowed: float = 0.0
    # Expected and got by index; in a tensor of tokens, the index begins with the token's number.
    elements: Mapping[tuple[int, ...], tuple[float, float]] = field(default_factory=dict)
    loss: tuple[float, float] | None = None
    # Whether the step computes in fp64 throughout.
    exactly: bool = False
    # The devices, the transport of collectives, and how many ranks share a device.
    placement: str = "cpu gloo 1"
    # Seconds for each case.
    deadline: float = 20.0

    def start(self, script: str) -> None:
        """On a rank, return. Elsewhere, start the ranks, and exit with their status."""
        if FOLDER not in os.environ:
            with TemporaryDirectory(prefix="harness-") as folder:
                status = self._launch(script, Path(folder))
            sys.exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    @staticmethod
    def put_beside(name: str, text: str) -> None:
        """Have the step import this text as a module."""
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = f"{name}.py"
        # Lines of it are shown where it raises.
        lines = text.splitlines(keepends=True)
        linecache.cache[module.__file__] = len(text), None, lines, module.__file__
        exec(compile(text, module.__file__, "exec", dont_inherit=True), module.__dict__)  # noqa: S102

    def judge(self, step: Step, plain: Callable[..., None] | None = None) -> None:
        """On a rank, run the cases; rank 0 reports how the last one ends.

        With `plain`, rank 0 also computes plain training of the step's recipe, and compares the
        step with that instead of with the numbers that the script states.
        """
        try:
            self._judge(step, plain, Path(os.environ[FOLDER]), int(os.environ["RANK"]))
        except Exception:  # noqa: BLE001 - torch would print it late, and for one rank only
            error = traceback.format_exc()
            print(f"rank {os.environ['RANK']}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(FAULT)

    def _launch(self, script: str, folder: Path) -> int:
        """Run the ranks to their end; return the exit status."""
        ranks = max(self.ranks, *(parse(line).ranks for line in self.cases))
        environment = Placement.read(self.placement).environment()
        _run_ranks(Order(ranks=ranks, environment=environment, launch=""), script, folder)
        status = folder / STATUS
        if status.exists():
            return int(status.read_text())
        stacks = [*map(_top_of_stack, sorted(folder.glob("hung.*")))]
        hung = f"hung for {self.deadline:g} s and was killed"
        end = hung if any(stacks) else "crashed, as it says above"
        self._print("FAULT", f"fault   a rank {end}", *filter(None, stacks))
        return FAULT

    def _judge(
        self, step: Step, plain: Callable[..., None] | None, folder: Path, index: int
    ) -> None:
        from torch import distributed as dist

        from harness.rank_program.mesh import Meshes
        from harness.rank_program.placement import join_ranks

        with (folder / f"hung.{index}").open("w") as stack:
            # This ends the rank even if it waits in a collective.
            faulthandler.dump_traceback_later(self.deadline, exit=True, file=stack)
            device = join_ranks(int(os.environ["LOCAL_RANK"]))
            meshes = Meshes(index, device)
            for case in map(parse, self.cases):
                meshes.build(case.dp, case.sp)
                faulthandler.dump_traceback_later(self.deadline, exit=True, file=stack)
                is_in = index < case.ranks
                fragments = _run(case, self._whole(step), meshes) if is_in else []
                by_rank: list[list[Fragment]] = [[] for _ in range(dist.get_world_size())]
                dist.all_gather_object(by_rank, fragments)
            faulthandler.cancel_dump_traceback_later()
        if index == 0:
            expected = Trace()
            if plain is not None:
                exactly = partial(plain, variant="plain", exactly=True)
                trained = assemble(case, [_run(case, exactly, meshes)])
                expected = trained.trace if isinstance(trained, Assembly) else expected
            status = self._report(case, by_rank[: case.ranks], expected)
            (folder / STATUS).write_text(str(status))
        dist.destroy_process_group()

    def _whole(self, step: Step) -> Step:
        """Return the step, in fp64 throughout if it must be."""
        from harness.recipes.exact import exact

        return exact()(step) if self.exactly else step

    def _report(self, case: Case, by_rank: list[list[Fragment]], plain: Trace) -> int:
        """Print the verdict on the fragments of the ranks; return the exit status."""
        assembly = assemble(case, by_rank)
        if isinstance(assembly, Fault):
            self._print("FAULT", f"fault   {assembly.summary}")
            return FAULT
        misfits = [f"{m.key}: {m.kind}, {m.tokens or m.ranks}" for m in assembly.misfits]
        wrong = misfits or list(self._wrong_elements(assembly.trace, plain))
        if wrong:
            self._print("DIVERGED", self.says, *wrong)
            return DIVERGED
        self._print("GONE", "now     no rank crashed or hung, and no element stated here is wrong")
        return PASSED

    def _wrong_elements(self, trace: Trace, plain: Trace) -> Iterator[str]:
        """Yield a line for each stated element that is still wrong."""
        for index, (stated, was) in self.elements.items():
            trained = plain.get(self.key)
            expected = stated if trained is None else trained.values[index].item()
            got = trace[self.key].values[index].item()
            # Negated, because every comparison with NaN is false.
            if not abs(got - expected) <= self.allowed:
                yield f"{self.key} {list(index)}: expected {expected}, got {got}; it was {was}"

    def _print(self, verdict: str, *lines: str) -> None:
        head = f"{verdict:<9} candidate {self.candidate}"
        print("\n  ".join([head, *lines]), flush=True)  # noqa: T201 - the script's answer


def _run_ranks(order: Order, script: str, folder: Path) -> None:
    """Start the ranks and wait until all have ended; one that fails ends the others."""
    os.environ |= {FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    with without_a_search_for_garbage():
        from torch.distributed.elastic.multiprocessing import (
            DefaultLogsSpecs,
            SignalException,
            start_processes,
        )
    by_rank = dict(enumerate(rank_environments(order, folder)))
    # A fork cannot start a device's driver again, and this process may have started it.
    on_cpu = Placement.read(order.environment[PLACEMENT]).on_cpu
    # Python drops an exception that a signal handler raises in a callback of `os.fork`.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        ranks = start_processes(
            name="rank",
            entrypoint=_run_as_main if on_cpu else sys.executable,
            args=dict.fromkeys(by_rank, (script,)),
            envs=by_rank,
            logs_specs=DefaultLogsSpecs(str(folder)),
            start_method="fork",
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        ranks.wait(period=0.1)
    except SignalException as end:
        print(f"stopped by {end.sigval.name}", file=sys.stderr)  # noqa: T201
    finally:
        # A signal may come before torch knows of every rank that it has forked.
        bury_all_below()


def _run_as_main(script: str) -> None:
    runpy.run_path(script, run_name="__main__")


def _top_of_stack(file: Path) -> str:
    """Return the top of the stack that a hung rank left in a file; empty if it did not hang."""
    head, *frames = file.read_text().splitlines()[1:STACK] or [""]
    return "\n  ".join([f"rank {file.suffix[1:]}  {head}", *frames]) if head else ""


def _run(case: Case, step: Step, meshes: "Meshes") -> list[Fragment]:
    """Run the step on this rank; return the fragments that it emits."""
    from harness.watch.recorder import Recorder

    # A recorder writes its progress to a file, which no process reads here.
    with Path(os.devnull).open("wb") as unread:
        rank = meshes.seat(case.dp, case.sp).rank
        recorder = Recorder(rank.index, case.tokens, traced=True, progress=unread.fileno())
        step(case, rank, recorder)
        return recorder.fragments()
