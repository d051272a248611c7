"""The two all-to-alls of Ulysses, which go from sequence layout to head layout and back.

In sequence layout a rank has all heads of its own tokens; in head layout it has all tokens, with
its own heads only.

Legend: L tokens on this rank, T tokens of the whole padded stream (sp x L), N heads, M = N / sp
heads on this rank, H head dim.
"""

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import ProcessGroup


class _Exchange(torch.autograd.Function):
    """Send piece j of the first dim to peer j; what peer j sends becomes piece j.

    The exchange permutes the data of the group and is its own inverse. So backward exchanges the
    gradient in the same way, without any factor.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, pieces: Tensor, group: ProcessGroup
    ) -> Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        return _all_to_all(pieces, group)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad_pieces: Tensor
    ) -> tuple[Tensor, None]:
        return _all_to_all(grad_pieces, ctx.group), None  # type: ignore[attr-defined]


def _all_to_all(pieces: Tensor, group: ProcessGroup) -> Tensor:
    # Some backends do not check strides, and fill a strided buffer wrongly without an error.
    sent = pieces.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received


def gather_tokens(x_LNH: Tensor, group: ProcessGroup) -> Tensor:
    """Go from sequence layout to head layout: send heads, receive tokens -> x_TMH."""
    pieces_sLMH = x_LNH.unflatten(1, (group.size(), -1)).movedim(1, 0)
    received: Tensor = _Exchange.apply(pieces_sLMH, group)  # type: ignore[no-untyped-call]
    return received.flatten(0, 1)


def scatter_tokens(x_TMH: Tensor, group: ProcessGroup) -> Tensor:
    """Go from head layout to sequence layout: send tokens, receive heads -> x_LNH."""
    pieces_sLMH = x_TMH.unflatten(0, (group.size(), -1))
    received: Tensor = _Exchange.apply(pieces_sLMH, group)  # type: ignore[no-untyped-call]
    return received.movedim(0, 1).flatten(1, 2)


def gather_tokens_together(tensors: tuple[Tensor, ...], group: ProcessGroup) -> tuple[Tensor, ...]:
    """Do `gather_tokens` for several tensors in one collective, each peer's heads side by side."""
    sp = group.size()
    heads = [x_LNH.shape[1] // sp for x_LNH in tensors]
    by_peer = torch.cat([x_LNH.unflatten(1, (sp, -1)) for x_LNH in tensors], 2)
    received: tuple[Tensor, ...] = gather_tokens(by_peer.flatten(1, 2), group).split(heads, 1)
    return received
