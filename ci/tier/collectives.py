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

# Seconds for two ranks to be up, and for one collective.
START, PATIENCE = 120.0, 10.0
WORLD, ROOT = 2, 0
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "uint8", "bool")
# Of this rank's tensor makes what it then has; nothing where it has no part in what comes out.
Attempt = Callable[[Tensor, int], Tensor | None]
# What that should be, of both ranks' tensors.
Due = Callable[[list[Tensor], int], Tensor]
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
            *told, (last, dtype, why) = pair(device, names)
            for name, its, error in (*told, (last, dtype, why)):
                found[name][its] = error
            # What ended the ranks would do so again.
            names = [each for each in names[len(told) + 1 :] if each[0] != last]
    print(json.dumps({"collectives": found}, indent=1))


def pair(device: str, names: Sequence[Named]) -> list[tuple[str, str, str]]:
    """What two ranks said of as many as they came to; the last may have been their end."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        said, errors = (
            [folder / f"{kind}.{r}" for r in range(WORLD)] for kind in ("said", "errors")
        )
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, device, str(r), name, json.dumps(names)],
                    # gloo would look up the name of the host.
                    env={"GLOO_SOCKET_IFNAME": "lo", **os.environ},
                    stderr=stack.enter_context(errors[r].open("w")),
                )
            )
            for r in range(WORLD)
        ]
        for process in ranks:
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
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=index,
        world_size=WORLD,
        timeout=timedelta(seconds=PATIENCE),
    )
    with (folder / f"said.{index}").open("w", buffering=1) as file:
        for name, dtype in names:
            attempt, due = COLLECTIVES[name]
            every = [
                torch.arange(12).reshape(4, 3).add(1 + 20 * r).to(getattr(torch, dtype))
                for r in range(WORLD)
            ]
            error = ""
            try:
                came = attempt(every[index].to(device, copy=True), index)
                if came is not None and not torch.equal(came.cpu(), due(every, index)):
                    error = f"wrong: {came.flatten()[:3].tolist()}"
            except Exception as raised:  # noqa: BLE001 - what is wanted is to know it
                error = f"{type(raised).__name__}: {raised}".partition("\n")[0][:200]
                print(error, file=sys.stderr)
            # If they cannot meet any more, it was the end of them.
            dist.barrier()
            print(json.dumps(error), file=file)


def total(every: list[Tensor], _rank: int) -> Tensor:
    return every[0] + every[1]


def part_of_total(every: list[Tensor], rank: int) -> Tensor:
    return total(every, rank).chunk(WORLD)[rank]


def all_of_it(every: list[Tensor], _rank: int) -> Tensor:
    return torch.cat(every)


def of_the_root(every: list[Tensor], _rank: int) -> Tensor:
    return every[ROOT]


def part_of_the_root(every: list[Tensor], rank: int) -> Tensor:
    return every[ROOT].chunk(WORLD)[rank]


def part_of_each(every: list[Tensor], rank: int) -> Tensor:
    return torch.cat([x.chunk(WORLD)[rank] for x in every])


def of_the_other(every: list[Tensor], rank: int) -> Tensor:
    return every[1 - rank]


def all_reduce(x: Tensor, _rank: int) -> Tensor:
    dist.all_reduce(x)
    return x


def all_gather(x: Tensor, _rank: int) -> Tensor:
    pieces = [torch.empty_like(x) for _ in range(WORLD)]
    dist.all_gather(pieces, x)
    return torch.cat(pieces)


def all_gather_into_tensor(x: Tensor, _rank: int) -> Tensor:
    whole = torch.cat([torch.empty_like(x)] * WORLD)
    dist.all_gather_into_tensor(whole, x)
    return whole


def broadcast(x: Tensor, _rank: int) -> Tensor:
    dist.broadcast(x, ROOT)
    return x


def gather(x: Tensor, rank: int) -> Tensor | None:
    pieces = [torch.empty_like(x) for _ in range(WORLD)] if rank == ROOT else None
    dist.gather(x, pieces, ROOT)
    return torch.cat(pieces) if pieces else None


def scatter(x: Tensor, rank: int) -> Tensor:
    part = torch.empty_like(x.chunk(WORLD)[0])
    dist.scatter(part, list(x.chunk(WORLD)) if rank == ROOT else None, ROOT)
    return part


def reduce(x: Tensor, rank: int) -> Tensor | None:
    dist.reduce(x, ROOT)
    return x if rank == ROOT else None


def reduce_scatter_tensor(x: Tensor, _rank: int) -> Tensor:
    part = torch.empty_like(x.chunk(WORLD)[0])
    dist.reduce_scatter_tensor(part, x)
    return part


def reduce_scatter(x: Tensor, _rank: int) -> Tensor:
    part = torch.empty_like(x.chunk(WORLD)[0])
    dist.reduce_scatter(part, list(x.chunk(WORLD)))
    return part


def all_to_all_single(x: Tensor, _rank: int) -> Tensor:
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return received


def all_to_all(x: Tensor, _rank: int) -> Tensor:
    pieces = [torch.empty_like(piece) for piece in x.chunk(WORLD)]
    dist.all_to_all(pieces, list(x.chunk(WORLD)))
    return torch.cat(pieces)


def send(x: Tensor, rank: int) -> Tensor | None:
    if rank == ROOT:
        dist.send(x, 1 - ROOT)
        return None
    received = torch.empty_like(x)
    dist.recv(received, ROOT)
    return received


def batch_isend_irecv(x: Tensor, rank: int) -> Tensor:
    received = torch.empty_like(x)
    messages = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return received


COLLECTIVES: dict[str, tuple[Attempt, Due]] = {
    "all_reduce": (all_reduce, total),
    "all_gather": (all_gather, all_of_it),
    "all_gather_into_tensor": (all_gather_into_tensor, all_of_it),
    "broadcast": (broadcast, of_the_root),
    "gather": (gather, all_of_it),
    "scatter": (scatter, part_of_the_root),
    "reduce": (reduce, total),
    "reduce_scatter_tensor": (reduce_scatter_tensor, part_of_total),
    "reduce_scatter": (reduce_scatter, part_of_total),
    "all_to_all_single": (all_to_all_single, part_of_each),
    "all_to_all": (all_to_all, part_of_each),
    "send": (send, of_the_other),
    "batch_isend_irecv": (batch_isend_irecv, of_the_other),
}

if __name__ == "__main__":
    main()
