"""Refuse messages from a GPU over gloo, also a pretended one, before they are sent.

gloo copies the tensors of most collectives to the host first, but not those of the operations
below: it takes the address on the GPU for one on the host, and passes it to a socket unchecked.
"""

from collections.abc import Sequence
from typing import Any

from torch import distributed as dist

from harness.pretend.tensor import tensors_in

# Operations as torch's dispatcher names them, and the position of the argument with their group.
NOT_STAGED = {"alltoall_": 2, "recv_": 1, "recv_any_source_": 1, "send": 1}


class NotOverGloo(ValueError):
    """gloo cannot do this on a GPU; the message names the operation and the device."""


def refuse_over_gloo(name: str, arguments: Sequence[Any]) -> None:
    """Raise `NotOverGloo` if an operation over gloo would send a tensor from a GPU."""
    if name not in NOT_STAGED:
        return
    for tensor in tensors_in(arguments):
        group = dist.ProcessGroup.unbox(arguments[NOT_STAGED[name]])
        if tensor.is_cuda and dist.get_backend(group) == "gloo":
            raise NotOverGloo(
                f"{name.strip('_')}: gloo sends tensors of the host only, and this one is on "
                f"{tensor.device}; send a copy on the host, use all_to_all_single or "
                "all_gather, or run with --transport nccl"
            )
