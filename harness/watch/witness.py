"""Every collective and message of this rank, noted as it passes through torch's dispatcher.

They come by there whoever starts them: Python, functional collectives, or DDP's reducer in C++.
`torch.library` lets a function of ours stand before the backend's.
"""

from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from harness.pretend.over_gloo import refuse_over_gloo
from harness.pretend.tensor import tensors_in
from harness.watch.collectives import GATE, MESSAGES, Row, called

Shape = tuple[int, ...]

# Every operation in which ranks meet, and which of its arguments this rank gives to others.
GIVEN = {
    "_allgather_base_": 1,
    "_reduce_scatter_base_": 1,
    "allgather_": 1,
    "allgather_coalesced_": 1,
    "allgather_into_tensor_coalesced_": 1,
    "allreduce_": 0,
    "allreduce_coalesced_": 0,
    "alltoall_": 1,
    "alltoall_base_": 1,
    "barrier": None,
    "broadcast_": 0,
    "gather_": 1,
    "monitored_barrier_": None,
    "recv_": None,
    "recv_any_source_": None,
    "reduce_": 0,
    "reduce_scatter_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "scatter_": 1,
    "send": 0,
}
# Which says to whom, of a message, or how much to each.
ADDRESS = {"alltoall_base_": 4, "send": 2}
# Other libraries' functions come after it, and the backends' come last.
BEFORE = "BackendSelect"
BELOW = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, BEFORE))  # noqa: SLF001 - for a redispatch torch has no other name


class Passed(NamedTuple):
    """A collective or a message, and what this rank gave to it."""

    kind: str
    group: dist.ProcessGroup
    given: list[tuple[Shape, torch.dtype]]
    # To whom, or how many rows to each.
    to: int | list[int] | None


class Witness:
    """Notes what passes from now on, until nobody keeps it any more."""

    def __init__(self) -> None:
        self.passed: list[Passed] = []
        self._library = torch.library.Library("c10d", "IMPL")
        for name, place in GIVEN.items():
            if packet := getattr(torch.ops.c10d, name, None):
                # Nothing that is registered holds the witness, so that it ends with its keeper.
                noted = partial(_note, self.passed, name, _kind(name), packet.default, place)
                self._library.impl(name, noted, BEFORE, with_keyset=True)

    def order(self, *, shapes: bool) -> list[Row]:
        """The collectives, without those of the harness."""
        entered = (
            (each.group, each.kind, each.given if shapes else [])
            for each in self.passed
            if not each.kind.startswith(MESSAGES)
        )
        order = []
        for (group, kind, given), run in groupby(entered):
            if not group.group_desc.startswith(GATE):
                shape = ", ".join(str(list(shape)) for shape, _ in given)
                dtype = ", ".join(str(dtype).removeprefix("torch.") for _, dtype in given)
                name = called(group.group_name, group.group_desc)
                order.append((name, kind, shape, dtype, len(list(run))))
        return order


def _note(
    passed: list[Passed],
    name: str,
    kind: str,
    operation: Any,
    place: int | None,
    keys: Any,
    *args: Any,
) -> Any:
    given = [] if place is None else [(tuple(t.shape), t.dtype) for t in tensors_in([args[place]])]
    group = dist.ProcessGroup.unbox(args[2 if place == 1 else 1])
    refuse_over_gloo(name, args)
    to = ADDRESS.get(name)
    passed.append(Passed(kind, group, given, None if to is None else args[to]))
    return operation.redispatch(keys & BELOW, *args)


def _kind(name: str) -> str:
    """As it is called in Python."""
    words = name.strip("_")
    for word in ("all_gather", "all_reduce", "all_to_all"):
        words = words.replace(word.replace("_", ""), word)
    return words
