"""Note every collective and message of this rank on its way through torch's dispatcher.

All of them take this way: those of Python, functional collectives, and DDP's reducer in C++.
`torch.library` lets a function of ours run before the backend's.
"""

from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from harness.pretend.over_gloo import refuse_over_gloo
from harness.pretend.tensor import tensors_in
from harness.watch.collectives import GATE, MESSAGES, Row, display_name

Shape = tuple[int, ...]

# Every operation in which ranks meet, and the position of the argument that this rank gives. Older
# releases of torch lack some of them.
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
    "gather_into_tensor_": 1,
    "monitored_barrier_": None,
    "recv_": None,
    "recv_any_source_": None,
    "reduce_": 0,
    "reduce_scatter_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
    "scatter_": 1,
    "send": 0,
}
# The position of the argument with the receiver of a message, or with the rows for each rank.
TARGETS = {"alltoall_base_": 4, "send": 2}
# Functions of other libraries run after this dispatch key, and the backends' run last.
BEFORE = "BackendSelect"
BELOW = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, BEFORE))  # noqa: SLF001 - for a redispatch torch has no other name


class Call(NamedTuple):
    """A collective or a message, and what this rank gave to it."""

    kind: str
    group: dist.ProcessGroup
    given: list[tuple[Shape, torch.dtype]]
    # The receiver of a message, or the number of rows for each rank.
    target: int | list[int] | None


class Witness:
    """Notes calls for as long as it exists."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._library = torch.library.Library("c10d", "IMPL")
        for name, place in GIVEN.items():
            if packet := getattr(torch.ops.c10d, name, None):
                # Bind the list only: a reference to the witness would keep it alive for ever.
                noted = partial(_note, self.calls, name, _kind(name), packet.default, place)
                self._library.impl(name, noted, BEFORE, with_keyset=True)

    def order(self, *, shapes: bool) -> list[Row]:
        """Return the collectives, without those of the harness; equal ones in a row as one."""
        entered = (
            (call.group, call.kind, call.given if shapes else [])
            for call in self.calls
            if not call.kind.startswith(MESSAGES)
        )
        order = []
        for (group, kind, given), run in groupby(entered):
            if not group.group_desc.startswith(GATE):
                shape = ", ".join(str(list(shape)) for shape, _ in given)
                dtype = ", ".join(str(dtype).removeprefix("torch.") for _, dtype in given)
                name = display_name(group.group_name, group.group_desc)
                order.append((name, kind, shape, dtype, len(list(run))))
        return order


def _note(
    calls: list[Call],
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
    target = args[TARGETS[name]] if name in TARGETS else None
    calls.append(Call(kind, group, given, target))
    return operation.redispatch(keys & BELOW, *args)


def _kind(name: str) -> str:
    """Return the name of an operation as Python spells it."""
    words = name.strip("_")
    for word in ("all_gather", "all_reduce", "all_to_all"):
        words = words.replace(word.replace("_", ""), word)
    return words
