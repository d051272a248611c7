"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import blocks_get_the_final_result


def loss_in_fp32() -> AbstractContextManager[Any]:
    """While this lasts, logits are converted to fp32 for the loss, as on one rank."""
    from harness.candidates.published.ms_swift import library

    released = library.per_token_loss_func_sp

    def loss_func(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        return released(outputs.logits.float(), *args, **kwargs)

    return patch.dict(library.compute_loss.__globals__, per_token_loss_func_sp=loss_func)


def ring_with_final_result() -> AbstractContextManager[Any]:
    from swift.sequence_parallel import zigzag_ring_attn

    return blocks_get_the_final_result(zigzag_ring_attn)


MENDS: dict[str, Mend] = {
    "ring-drops-lse-gradient": ring_with_final_result,
    "loss-in-half": loss_in_fp32,
}
