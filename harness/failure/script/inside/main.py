"""One process of torchrun."""

import faulthandler
import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.case import Case
from harness.failure.script.inside.batch import Row
from harness.failure.script.inside.judge import judge
from harness.failure.script.inside.trace import numbers

# Who waits longer than this for another rank gives up.
PATIENCE = timedelta(seconds=60)


def main(
    name: str, line: str, run: Callable[[Case, Rank, Emit], None], cases: list[dict[str, Any]]
) -> int:
    """Run all cases, judge the last and print; the exit status."""
    torch.set_num_threads(1)
    index, size, device = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "cpu"
    if torch.cuda.is_available() and torch.cuda.device_count() >= size:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=PATIENCE)
    try:
        for described in cases:
            # Who hangs elsewhere than in a collective says where, and ends.
            faulthandler.dump_traceback_later(2 * PATIENCE.seconds, exit=True)
            case = Case(**described | {"rows": tuple(Row(*row) for row in described["rows"])})
            rank, emit = seat(case.dp, case.sp, torch.device(device)), Collector()
            if rank:
                run(case, rank, emit)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        print(f"FAULT on rank {index}: {what}\n", end="", flush=True)  # noqa: T201
        raise
    everything: Any = [None] * size if index == 0 else None
    dist.gather_object(emit.pieces, everything)
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()
    if index > 0:
        return 0
    differences = judge(case, everything[: case.dp * case.sp])
    print(f"candidate  {name}\ncase       {line}")  # noqa: T201 - it is what this is for
    for number, difference in enumerate(differences):
        print("then      " if number else "first     ", difference)  # noqa: T201
    if not differences:
        print("equal      in every loss and every gradient")  # noqa: T201
    return 1 if differences else 0


class Collector:
    """What a candidate hands each tensor to; it may go on to change the tensor in place."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def __call__(self, key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        if key in ("nll", "loss") or key.startswith("grad."):
            self.pieces.append((key, numbers(tensor), numbers(tokens)))


@cache
def seat(dp: int, sp: int, device: torch.device) -> Rank | None:
    """This process's place in the mesh: its number is dp_index * sp + sp_index."""
    index, mesh = dist.get_rank(), torch.arange(dp * sp).view(dp, sp)
    # All processes take part in making every group, also those that are not in it.
    *groups, world = [
        dist.new_group(ranks.tolist(), timeout=PATIENCE)
        for ranks in (*mesh, *mesh.T, mesh.flatten())
    ]
    d, s = divmod(index, sp)
    return Rank(index, d, s, device, groups[dp + s], groups[d], world) if d < dp else None
