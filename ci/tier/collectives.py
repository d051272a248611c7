"""Find out which collectives gloo runs between two ranks on one device, and in which dtypes.

    python ci/tier/collectives.py cuda

runs each of them, compares the result with the right one, and prints JSON. A collective that gloo
does not support on a device may hang or kill a rank. It is not tried in further dtypes then.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

# Seconds for the start of two ranks, and for one collective.
START, PATIENCE = 120.0, 10.0
WORLD, ROOT = 2, 0
GROUP = list(range(WORLD))
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
# The name of a collective and of a dtype.
Trial = tuple[str, str]


def main() -> None:
    device, *of_rank = sys.argv[1:]
    if of_rank:
        run_rank(torch.device(device), int(of_rank[0]), Path(of_rank[1]), json.loads(of_rank[2]))
        return
    errors: dict[str, dict[str, str]] = {name: {} for name in COLLECTIVES}
    trials = [(name, dtype) for name in COLLECTIVES for dtype in DTYPES]
    # An interrupt keeps what is known.
    with suppress(KeyboardInterrupt):
        while trials:
            results = run_pair(device, trials)
            for name, dtype, error in results:
                errors[name][dtype] = error
            # The last one ended the ranks, and would end them in other dtypes as well.
            trials = [trial for trial in trials[len(results) :] if trial[0] != name]
    print(json.dumps({"collectives": errors}, indent=1))


def run_pair(device: str, trials: Sequence[Trial]) -> list[tuple[str, str, str]]:
    """Run trials on two ranks until one ends them; return each trial with its error, or none."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        outputs, logs = ([Path(name, f"{k}.{r}") for r in range(WORLD)] for k in ("out", "log"))
        ranks = []
        for r in range(WORLD):
            command = [sys.executable, __file__, device, str(r), name, json.dumps(trials)]
            # Without this variable gloo looks up the name of the host, which may take minutes.
            environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
            log = stack.enter_context(logs[r].open("w"))
            process = subprocess.Popen(command, env=environment, stderr=log)
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        end = wait(ranks, outputs)
        pairs = zip(*(path.read_text().splitlines() for path in outputs), strict=False)
        results = [
            (*trial, next(filter(None, map(json.loads, pair)), ""))
            for trial, pair in zip(trials, pairs, strict=False)
        ]
        if len(results) < len(trials):
            last = [path.read_text().strip().rpartition("\n")[2] for path in logs]
            results.append((*trials[len(results)], "; ".join([end, *filter(None, last)])))
        return results


def wait(ranks: list["subprocess.Popen[bytes]"], outputs: list[Path]) -> str:
    """Wait until both ranks are done, one has died, or they hang; return how they ended."""
    written, since = 0, time.monotonic()
    while any(process.poll() is None for process in ranks):
        size = sum(path.stat().st_size for path in outputs if path.exists())
        if size > written:
            written, since = size, time.monotonic()
        if time.monotonic() - since > (3 * PATIENCE if written else START):
            return "hangs"
        if any(process.poll() for process in ranks):
            break
        time.sleep(0.02)
    ends = [f"rank {r} ended with {process.poll()}" for r, process in enumerate(ranks)]
    return " and ".join(end for end, process in zip(ends, ranks, strict=True) if process.poll())


def run_rank(device: torch.device, index: int, folder: Path, trials: Sequence[Trial]) -> None:
    """Run the trials on one rank; write a line with the error of each, or with an empty text."""
    rendezvous, timeout = f"file://{folder}/rendezvous", timedelta(seconds=PATIENCE)
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=index, world_size=WORLD, timeout=timeout
    )
    with (folder / f"out.{index}").open("w", buffering=1) as file:
        for name, dtype in trials:
            perform, filled, content = COLLECTIVES[name]
            one = torch.arange(1, 13).reshape(4, 3)
            every = [(one + 20 * r).to(getattr(torch, dtype)) for r in range(WORLD)]
            error = ""
            try:
                tensors = Tensors(every[index].to(device, copy=True), index)
                perform(tensors)
                got = [x.cpu() for x in filled(tensors)]
                if got and not torch.equal(torch.cat(got), expected(every, index)[content]):
                    error = f"wrong: {torch.cat(got).flatten()[:3].tolist()}"
            except Exception as raised:  # noqa: BLE001 - the exception is the result
                error = f"{type(raised).__name__}: {raised}".partition("\n")[0][:200]
                print(error, file=sys.stderr)
            # It fails if this trial has broken the group, and ends the rank.
            dist.barrier()
            print(json.dumps(error), file=file)


class Tensors:
    """The inputs of a collective on one rank, and the tensors that it fills."""

    def __init__(self, x: Tensor, rank: int) -> None:
        self.x, self.other, self.at_root = x, 1 - rank, rank == ROOT
        self.parts = list(x.chunk(WORLD))
        # To be filled: as large as a part, as this rank's tensor, as both ranks' tensors; and the
        # last two in pieces.
        self.part = torch.empty_like(self.parts[0])
        self.same = torch.empty_like(x)
        self.whole = torch.cat([self.same] * WORLD)
        self.empty_parts = [torch.empty_like(part) for part in self.parts]
        self.pieces = [torch.empty_like(x) for _ in range(WORLD)]


def send(t: Tensors) -> None:
    if t.at_root:
        dist.send(t.x, t.other)
    else:
        dist.recv(t.same, t.other)


def batch_isend_irecv(t: Tensors) -> None:
    messages = [dist.P2POp(dist.isend, t.x, t.other), dist.P2POp(dist.irecv, t.same, t.other)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


def expected(every: list[Tensor], rank: int) -> dict[str, Tensor]:
    """Return every right result that a collective can have, from the tensors of both ranks."""
    parts = [x.chunk(WORLD)[rank] for x in every]
    return {
        "sum": every[0] + every[1],
        "part of sum": parts[0] + parts[1],
        "all": torch.cat(every),
        "root's": every[ROOT],
        "part of root's": parts[ROOT],
        "parts": torch.cat(parts),
        "other's": every[1 - rank],
    }


# The call; the tensors that it fills, none on a rank that receives nothing; and the right result,
# as `expected` names it.
Collective = tuple[Callable[[Tensors], object], Callable[[Tensors], list[Tensor]], str]
COLLECTIVES: dict[str, Collective] = {
    "all_reduce": (lambda t: dist.all_reduce(t.x), lambda t: [t.x], "sum"),
    "all_gather": (lambda t: dist.all_gather(t.pieces, t.x), lambda t: t.pieces, "all"),
    "all_gather_into_tensor": (
        lambda t: dist.all_gather_into_tensor(t.whole, t.x), lambda t: [t.whole], "all"),
    "broadcast": (lambda t: dist.broadcast(t.x, ROOT), lambda t: [t.x], "root's"),
    "gather": (
        lambda t: dist.gather(t.x, t.pieces if t.at_root else None, ROOT),
        lambda t: t.pieces if t.at_root else [], "all"),
    "scatter": (
        lambda t: dist.scatter(t.part, t.parts if t.at_root else None, ROOT),
        lambda t: [t.part], "part of root's"),
    "reduce": (lambda t: dist.reduce(t.x, ROOT), lambda t: [t.x] if t.at_root else [], "sum"),
    "reduce_scatter_tensor": (
        lambda t: dist.reduce_scatter_tensor(t.part, t.x), lambda t: [t.part], "part of sum"),
    "reduce_scatter": (
        lambda t: dist.reduce_scatter(t.part, t.parts), lambda t: [t.part], "part of sum"),
    "all_to_all_single": (
        lambda t: dist.all_to_all_single(t.same, t.x), lambda t: [t.same], "parts"),
    "all_to_all": (
        lambda t: dist.all_to_all(t.empty_parts, t.parts), lambda t: t.empty_parts, "parts"),
    "send": (send, lambda t: [] if t.at_root else [t.same], "other's"),
    "batch_isend_irecv": (batch_isend_irecv, lambda t: [t.same], "other's"),
    # DTensor calls these, which do not go through the functions above.
    "functional all_reduce": (
        lambda t: t.same.copy_(functional.all_reduce(t.x, "sum", GROUP)),
        lambda t: [t.same], "sum"),
    "functional reduce_scatter_tensor": (
        lambda t: t.part.copy_(functional.reduce_scatter_tensor(t.x, "sum", 0, GROUP)),
        lambda t: [t.part], "part of sum"),
    "functional all_to_all_single": (
        lambda t: t.same.copy_(functional.all_to_all_single(t.x, None, None, GROUP)),
        lambda t: [t.same], "parts"),
    "functional all_gather_tensor": (
        lambda t: t.whole.copy_(functional.all_gather_tensor(t.x, 0, GROUP)),
        lambda t: [t.whole], "all"),
}  # fmt: skip

if __name__ == "__main__":
    main()
