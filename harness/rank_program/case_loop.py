"""The loop of a rank after its heavy imports: run one case after the other."""

import os
import time
import traceback
from contextlib import nullcontext
from textwrap import shorten
from typing import TYPE_CHECKING, NoReturn

from torch import distributed as dist

from harness.candidates import STOOD_IN
from harness.candidates.beside import require_own
from harness.case import parse
from harness.rank_program.hardware import count_allocations, describe_hardware
from harness.rank_program.mesh import Meshes
from harness.rank_program.placement import join_ranks
from harness.rank_program.support_query import hypotheses, load, load_recipe
from harness.rank_program.warm_up import warm_up
from harness.recipes.exact import exact
from harness.watch.activations import bytes_to_peers
from harness.watch.flight_recorder import log
from harness.watch.recorder import Recorder
from harness.watch.witness import Witness
from harness.wire.messages import Finished, Mesh, Raised, Ready, Run
from harness.wire.payload import pack

if TYPE_CHECKING:
    from harness.rank_program.controller_link import Controller

# The most characters of an exception's text, which is shown as a line, and of each piece of its
# traceback, which has all of it.
LONGEST_LINE, LONGEST = 600, 1 << 14


def _in_a_line(text: str) -> str:
    # Cut first: it may be larger than anything that can be split into words.
    return shorten(text[:LONGEST], LONGEST_LINE, placeholder=" …")


class CaseLoop:
    """Serves the requests of the controller until the socket closes, which ends the process."""

    def __init__(self, controller: "Controller", index: int, local: int) -> None:
        self._controller, self._index = controller, index
        self._device = join_ranks(local)
        self._meshes, self._witness = Meshes(index, self._device), Witness()
        file = controller.folder / f"progress.{index}"
        self._progress = os.open(file, os.O_RDWR | os.O_CREAT)
        controller.read_collectives = log
        if self._device.type != "cpu":
            warm_up(self._device)
        controller.send(Ready(describe_hardware(self._device)))
        # No rank begins a case before all have left the previous one, so that an extra collective
        # of one case can never meet a collective of the next.
        self._gate = dist.barrier(async_op=True)
        self._witness.calls.clear()

    def serve(self) -> NoReturn:
        while True:
            request = self._controller.inbox.get()
            if isinstance(request, Mesh):
                self._meshes.build(request.dp, request.sp)
                continue
            try:
                answer: Finished | Raised = self._run(request)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the controller judges it
                answer = Raised(
                    request.run,
                    time.time_ns(),
                    error=_in_a_line(f"{type(error).__name__}: {error}"),
                    stack="".join(part[:LONGEST] for part in traceback.format_exception(error)),
                )
            self._controller.send(answer)

    def _run(self, request: Run) -> Finished:
        case = parse(request.case)
        recorder = Recorder(
            self._index,
            case.tokens,
            traced=request.traced,
            progress=self._progress,
            learns=request.learns,
        )
        allocations = count_allocations(self._device)
        recipe = load_recipe(request) if request.plain and not request.is_load_only else None
        candidate, refusal, limits = (None, "", "") if recipe else load(request, case, recorder)
        dp, sp = (1, 1) if request.plain else (case.dp, case.sp)
        seat = self._meshes.seat(dp, sp)
        self._gate.wait()
        if recipe:
            recipe.run_plain(case, seat.rank, recorder, request.plain, exactly=request.oracle)
        if candidate:
            with exact() if request.exactly else nullcontext():
                candidate.run(case, seat.rank, recorder)
        if recipe or candidate:
            # The step may have imported more modules.
            require_own(request.folder)
        fragments = recorder.fragments()
        # Count before the gate, which may allocate memory as well.
        idle = 0 < allocations == count_allocations(self._device)
        # Begin before packing, so that the other ranks can leave meanwhile.
        self._gate = dist.barrier(group=seat.gate, async_op=True)
        pieces, tensors = pack(fragments)
        peers = set(dist.get_process_group_ranks(seat.rank.sp))
        ways, calls = (dp, sp, dp * sp), self._witness.calls
        exchanged = bytes_to_peers(calls, self._index, peers, ways, recorder.parameters)
        order = self._witness.order(shapes=recorder.traced)
        calls.clear()
        recorder.note_progress("between cases")
        return Finished(
            request.run,
            pieces,
            tensors,
            skipped=list(recorder.skipped),
            refusal=refusal,
            limits=limits,
            idle=idle,
            sent=exchanged + recorder.sent,
            embedded=recorder.embedded,
            hypotheses=hypotheses(request) if request.is_load_only and not refusal else [],
            order=order,
            stood_in=sorted(STOOD_IN),
            unemitted=recorder.unemitted,
        )
