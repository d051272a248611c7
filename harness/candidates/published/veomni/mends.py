"""The release without its listed bug."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend


@contextmanager
def balanced_over_sequences() -> Iterator[None]:
    """While this lasts, the balance of experts is that of all tokens of a sequence."""
    from veomni.models.transformers.qwen3_moe.generated import patched_modeling_qwen3_moe_gpu as of

    from harness.candidates.published.veomni.library import parallel_state, sharing

    forward, released = of.Qwen3MoeForCausalLM.forward, of.load_balancing_loss_func
    padding = 0

    def keeping_padding(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal padding
        padding = int(kwargs.get("tail_padding_length", 0))
        return forward(self, *args, **kwargs)

    def balance(
        gate_logits: tuple[Tensor, ...], experts: int, top: int, attention_mask: Tensor
    ) -> Any:
        group = parallel_state.get_parallel_state().sp_group
        if group is not None:
            real = attention_mask.shape[1] - padding
            gate_logits = tuple(
                sharing.gather_outputs(logits, gather_dim=0, group=group)[:real]
                for logits in gate_logits
            )
            attention_mask = attention_mask[:, :real]
        return released(gate_logits, experts, top, attention_mask)

    with (
        patch.object(of.Qwen3MoeForCausalLM, "forward", keeping_padding),
        patch.object(of, "load_balancing_loss_func", balance),
    ):
        yield


MENDS: dict[str, Mend] = {"balance-of-a-shard": balanced_over_sequences}
