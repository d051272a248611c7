"""What a rank does, once it has imported all that it needs: one case after the other."""

import os
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

from torch import distributed as dist

from harness.candidates import STOOD_IN
from harness.candidates.beside import require_own
from harness.case import parse
from harness.ranks.hardware import allocations, described
from harness.ranks.mesh import Meshes
from harness.ranks.messages import Finished, Mesh, Raised, Ready, Run
from harness.ranks.payload import pack
from harness.ranks.placement import settle
from harness.ranks.support_query import loaded, willing
from harness.ranks.warm_up import warm_up
from harness.watch.activations import sent
from harness.watch.flight_recorder import log
from harness.watch.recorder import Recorder
from harness.watch.witness import Witness

if TYPE_CHECKING:
    from harness.ranks.controller_link import Controller

# Characters of what a candidate says in one piece.
LONG = 1 << 14


class Serving:
    """Does what the controller asks for, until that is gone."""

    def __init__(self, controller: "Controller", index: int, local: int) -> None:
        self._controller, self._index = controller, index
        self._device = settle(local)
        self._meshes, self._witness = Meshes(index, self._device), Witness()
        file = controller.folder / f"progress.{index}"
        self._progress = os.open(file, os.O_RDWR | os.O_CREAT)
        controller.collectives = log
        if self._device.type != "cpu":
            warm_up(self._device)
        controller.send(Ready(described(self._device)))
        # No rank begins a case before all have left the one before it, so that a collective too
        # many can never meet one of the next case.
        self._gate = dist.barrier(async_op=True)
        self._witness.passed.clear()

    def serve(self) -> NoReturn:
        while True:
            asked = self._controller.inbox.get()
            if isinstance(asked, Mesh):
                self._meshes.build(asked.dp, asked.sp)
                continue
            try:
                answer: Finished | Raised = self._run(asked)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the controller judges it
                answer = Raised(
                    asked.run,
                    time.time_ns(),
                    error=f"{type(error).__name__}: {error}"[:LONG],
                    stack="".join(part[:LONG] for part in traceback.format_exception(error)),
                )
            self._controller.send(answer)

    def _run(self, asked: Run) -> Finished:
        case = parse(asked.case)
        recorder = Recorder(
            self._index,
            case.tokens,
            traced=asked.traced,
            progress=self._progress,
            learns=asked.learns,
        )
        memory = allocations(self._device)
        ask = loaded if asked.loads else willing
        candidate, refusal, limits = ask(
            asked.candidate, asked.folder, case, recorder, asked.oracle
        )
        seat = self._meshes.seat(case.dp, case.sp)
        self._gate.wait()
        if candidate:
            candidate.run(case, seat.rank, recorder)
            # What it imports late as well.
            require_own(asked.folder)
        fragments = recorder.fragments()
        # Before the gate, which may ask for memory as well.
        idle = 0 < memory == allocations(self._device)
        # The others leave while this one packs.
        self._gate = dist.barrier(group=seat.gate, async_op=True)
        pieces, tensors = pack(fragments)
        peers = set(dist.get_process_group_ranks(seat.rank.sp))
        ways, passed = (case.dp, case.sp, case.ranks), self._witness.passed
        given = sent(passed, self._index, peers, ways, recorder.parameters)
        order = self._witness.order(shapes=recorder.traced)
        passed.clear()
        recorder.reached("between cases")
        return Finished(
            asked.run,
            pieces,
            tensors,
            skipped=list(recorder.skipped),
            refusal=refusal,
            limits=limits,
            idle=idle,
            sent=given + recorder.sent,
            order=order,
            stood_in=sorted(STOOD_IN),
            unemitted=recorder.unemitted,
        )
