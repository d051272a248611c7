"""The release without each of its listed bugs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring import mending
from harness.candidates.published.wiring.mending import Call, wrapped


def window_on_any_shard() -> AbstractContextManager[Any]:
    hf_adapter = imported("ring_flash_attn.adapters.hf_adapter")
    rings = partial(wrapped, hf_adapter, "llama3_flash_attn_varlen_func")
    return mending.window_on_any_shard(hf_adapter, rings)


@contextmanager
def window_counts_the_token_itself() -> Iterator[None]:
    varlen = imported("ring_flash_attn.llama3_flash_attn_varlen")
    reduced = mending.window_counts_the_token_itself
    with ExitStack() as patches:
        for name in ("llama3_flash_attn_varlen_forward", "llama3_flash_attn_varlen_backward"):
            patches.enter_context(wrapped(varlen, name, reduced))
        yield


def at_least_one_target() -> AbstractContextManager[Any]:
    """While this lasts, a step with nothing to learn has a loss of zero."""
    from harness.candidates.published.openrlhf import library

    def clamped(original: Call) -> Call:
        @wraps(original)
        def call(*args: Any, batch_num_tokens: Tensor, **kwargs: Any) -> Any:
            count = batch_num_tokens + (batch_num_tokens == 0)
            return original(*args, batch_num_tokens=count, **kwargs)

        return call

    return wrapped(library.losses, "aggregate_loss", clamped)


def mean_over_replicas() -> AbstractContextManager[Any]:
    """While this lasts, the logged `loss_mean` is averaged over replicas, as the other values."""
    from harness.candidates.published.openrlhf import sft

    def reduced(original: Call) -> Call:
        def call(self: Any, args: Any, number: int, bar: Any, logs: Any, states: Any) -> None:
            logs["loss_mean"] = self.strategy.all_reduce(logs["loss_mean"])
            original(self, args, number, bar, logs, states)

        return call

    return wrapped(sft.Trainer, "save_logs_and_checkpoints", reduced)


def weighted_once() -> AbstractContextManager[Any]:
    """While this lasts, losses that already are shares of a mean are not weighted by tokens."""
    from harness.candidates.published.openrlhf import ppo

    def alike(original: Call) -> Call:
        def call(self: Any, *args: Any) -> Any:
            status = original(self, *args)
            status["num_action_tokens"] = 1.0
            return status

        return call

    return wrapped(ppo.Trainer, "training_step", alike)


@contextmanager
def balanced_over_sequences() -> Iterator[None]:
    """While this lasts, the balance of experts is that of all tokens which a ring shares."""
    from transformers.models.qwen3_moe import modeling_qwen3_moe as of

    from harness.candidates.published.openrlhf import library

    balance, cut = of.load_balancing_loss_func, library.actor.unpad_and_slice_tensor
    padding = 0

    def keeping_padding(*given: Any) -> Any:
        nonlocal padding
        parts = cut(*given)
        padding = parts[3]
        return parts

    def balance_of_all(gate_logits: tuple[Tensor, ...], *given: Any) -> Any:
        group = library.ring.get_ring_attn_group()
        if group is not None:
            whole = [library.ring.all_gather(logits, group) for logits in gate_logits]
            gate_logits = tuple(logits[: len(logits) - padding] for logits in whole)
        return balance(gate_logits, *given)

    with (
        patch.object(library.actor, "unpad_and_slice_tensor", keeping_padding),
        patch.object(of, "load_balancing_loss_func", balance_of_all),
    ):
        yield


def margins_with_either_loss() -> AbstractContextManager[Any]:
    """While this lasts, `LogExpLoss` heeds margins as `PairWiseLoss` does."""
    from harness.candidates.published.openrlhf import library

    def by_margin(original: Call) -> Call:
        def call(self: Any, chosen: Tensor, rejected: Tensor, margin: Any = None) -> Any:
            return original(self, chosen if margin is None else chosen - margin, rejected)

        return call

    return wrapped(library.losses.LogExpLoss, "forward", by_margin)


def imported(name: str) -> Any:
    """Return a module of ring-flash-attn, imported as the strategy imports it."""
    from harness.candidates.published.openrlhf import library

    library.ring.patch_transformers_for_ring_flash_attn()
    return import_module(name)


MENDS: dict[str, Mend] = {
    "window-gated-on-shard": window_on_any_shard,
    "window-one-too-wide": window_counts_the_token_itself,
    "step-without-targets": at_least_one_target,
    "loss-mean-of-one-replica": mean_over_replicas,
    "policy-loss-weighted-twice": weighted_once,
    "balance-of-a-shard": balanced_over_sequences,
    "margins-ignored-by-logexp": margins_with_either_loss,
}
