"""Ways to run without a listed bug."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import blocks_told_the_end


def loss_in_full() -> AbstractContextManager[Any]:
    """Logits are turned to fp32 for the loss, as on one rank."""
    from harness.candidates.published.ms_swift import library

    released = library.per_token_loss_func_sp

    def loss_func(outputs: Any, *given: Any, **named: Any) -> Any:
        return released(outputs.logits.float(), *given, **named)

    names = library.compute_loss.__globals__
    return patch.dict(names, per_token_loss_func_sp=loss_func)


def ring_told_the_end() -> AbstractContextManager[Any]:
    from swift.sequence_parallel import zigzag_ring_attn

    return blocks_told_the_end(zigzag_ring_attn)


MENDS: dict[str, Mend] = {
    "ring-drops-lse-gradient": ring_told_the_end,
    "loss-in-half": loss_in_full,
}
