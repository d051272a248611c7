"""Which collectives gloo carries between two ranks on one device, and in which dtypes.

    python ci/tier/collectives.py cuda

tries each, compares what came with what should have, and prints JSON. What is not made for a
device may hang or kill a rank: it comes last, and in the dtypes that are left it is not tried.
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

# Seconds for two ranks to be up, and for one collective.
START, PATIENCE = 120.0, 10.0
WORLD, ROOT = 2, 0
GROUP = list(range(WORLD))
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
Named = tuple[str, str]


def main() -> None:
    device, *of_rank = sys.argv[1:]
    if of_rank:
        rank(torch.device(device), int(of_rank[0]), Path(of_rank[1]), json.loads(of_rank[2]))
        return
    found: dict[str, dict[str, str]] = {name: {} for name in COLLECTIVES}
    names = [(name, dtype) for name in COLLECTIVES for dtype in DTYPES]
    # Cut off, it says what it knows.
    with suppress(KeyboardInterrupt):
        while names:
            said = pair(device, names)
            for name, dtype, error in said:
                found[name][dtype] = error
            # What ended the ranks would do so again.
            names = [each for each in names[len(said) :] if each[0] != name]
    print(json.dumps({"collectives": found}, indent=1))


def pair(device: str, names: Sequence[Named]) -> list[tuple[str, str, str]]:
    """What two ranks said of as many as they came to; the last may have been their end."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        said, errors = ([Path(name, f"{k}.{r}") for r in range(WORLD)] for k in ("said", "errors"))
        ranks = []
        for r in range(WORLD):
            command = [sys.executable, __file__, device, str(r), name, json.dumps(names)]
            # gloo would look up the name of the host.
            known = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
            file = stack.enter_context(errors[r].open("w"))
            process = subprocess.Popen(command, env=known, stderr=file)
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        why = watch(ranks, said)
        told = zip(*(path.read_text().splitlines() for path in said), strict=False)
        found = [
            (*each, next(filter(None, map(json.loads, both)), ""))
            for each, both in zip(names, told, strict=False)
        ]
        if len(found) < len(names):
            last = [path.read_text().strip().rpartition("\n")[2] for path in errors]
            found.append((*names[len(found)], "; ".join([why, *filter(None, last)])))
        return found


def watch(ranks: list["subprocess.Popen[bytes]"], said: list[Path]) -> str:
    """Until both are done, one is dead, or nothing more is heard of them: how it ended."""
    heard, since = 0, time.monotonic()
    while any(process.poll() is None for process in ranks):
        size = sum(path.stat().st_size for path in said if path.exists())
        if size > heard:
            heard, since = size, time.monotonic()
        if time.monotonic() - since > (3 * PATIENCE if heard else START):
            return "hangs"
        if any(process.poll() for process in ranks):
            break
        time.sleep(0.02)
    ends = [f"rank {r} ended with {process.poll()}" for r, process in enumerate(ranks)]
    return " and ".join(end for end, process in zip(ends, ranks, strict=True) if process.poll())


def rank(device: torch.device, index: int, folder: Path, names: Sequence[Named]) -> None:
    """One of the two: it writes a line for each, which is empty where all is as it should be."""
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=PATIENCE)
    dist.init_process_group(
        "gloo", init_method=meeting, rank=index, world_size=WORLD, timeout=patience
    )
    with (folder / f"said.{index}").open("w", buffering=1) as file:
        for name, dtype in names:
            perform, filled, what = COLLECTIVES[name]
            one = torch.arange(1, 13).reshape(4, 3)
            every = [(one + 20 * r).to(getattr(torch, dtype)) for r in range(WORLD)]
            error = ""
            try:
                tensors = Tensors(every[index].to(device, copy=True), index)
                perform(tensors)
                got = [x.cpu() for x in filled(tensors)]
                if got and not torch.equal(torch.cat(got), due(every, index)[what]):
                    error = f"wrong: {torch.cat(got).flatten()[:3].tolist()}"
            except Exception as raised:  # noqa: BLE001 - what is wanted is to know it
                error = f"{type(raised).__name__}: {raised}".partition("\n")[0][:200]
                print(error, file=sys.stderr)
            # If they cannot meet any more, it was the end of them.
            dist.barrier()
            print(json.dumps(error), file=file)


class Tensors:
    """What a collective takes and what it fills, on one rank."""

    def __init__(self, x: Tensor, rank: int) -> None:
        self.x, self.other, self.at_root = x, 1 - rank, rank == ROOT
        self.parts = list(x.chunk(WORLD))
        # As large as a part, as this rank's tensor, as both tensors; and in pieces.
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


def due(every: list[Tensor], rank: int) -> dict[str, Tensor]:
    """What may come out, of both ranks' tensors."""
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


# What is called; what it fills, which is nothing on a rank without a part in what comes out; and
# what that should be.
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
    # DTensor calls these, and they reach the group by another way than those above.
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
