"""Ways to run without a listed bug."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend


def loss_in_full() -> AbstractContextManager[Any]:
    """Logits are turned to fp32 for the loss, as on one rank."""
    from harness.candidates.published.ms_swift import library

    released = library.per_token_loss_func_sp

    def loss_func(outputs: Any, *given: Any, **named: Any) -> Any:
        return released(outputs.logits.float(), *given, **named)

    names = library.compute_loss.__globals__
    return patch.dict(names, per_token_loss_func_sp=loss_func)


def blocks_told_the_end() -> AbstractContextManager[Any]:
    """Each block's backward gets what all of them came to, not its own part."""
    from swift.sequence_parallel import zigzag_ring_attn as ring

    released, block = ring.zigzag_ring_flash_attn_varlen_backward, ring.backward

    def backward(
        group: Any,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        *others: Any,
        **named: Any,
    ) -> Any:
        # (cu_seqlens, max_seqlen, the first half of every row, the second)
        half = others[3]
        whole = [dout[0], out[0], lse[0].transpose(0, 1)]

        def of_block(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
            # The first two are the block's own out and log-sum-exp.
            dout, out, lse = whole if len(q) == len(whole[0]) else [x[half] for x in whole]
            block(dout, q, k, v, out, lse.transpose(0, 1).contiguous(), *rest[2:])

        with patch.object(ring, "backward", of_block):
            return released(group, dout, q, k, v, out, lse, *others, **named)

    return patch.object(ring, "zigzag_ring_flash_attn_varlen_backward", backward)


MENDS: dict[str, Mend] = {
    "ring-drops-lse-gradient": blocks_told_the_end,
    "loss-in-half": loss_in_full,
}
