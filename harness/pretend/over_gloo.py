"""Messages between GPUs over gloo, pretended ones too, refused before they are sent.

gloo stages most collectives through the host. Not these: it takes the address to be one of the
host, and hands it to a socket, which nobody checks.
"""

from collections.abc import Sequence
from typing import Any

from torch import distributed as dist

from harness.pretend.tensor import tensors_in

# By the names that torch's dispatcher has for them, and where each is given its group.
NOT_STAGED = {"alltoall_": 2, "recv_": 1, "recv_any_source_": 1, "send": 1}


class NotOverGloo(ValueError):
    """The message names the operation and the device."""


def refuse_over_gloo(name: str, arguments: Sequence[Any]) -> None:
    """Raise where the group of this operation is gloo's, and one of its tensors is on a GPU."""
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
