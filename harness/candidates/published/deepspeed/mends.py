"""The release without each of its listed bugs.

Legend: B rows, S tokens of all ranks, s tokens of one.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.mending import wrapped
from harness.candidates.published.wiring.rows import IGNORED

# An attention as transformers calls it: (layer, q, k, v, mask, **options).
Attend = Callable[..., tuple[Tensor, Any]]
# see(options of a core attention) -> which tokens may attend to which: [B, S, S].
See = Callable[[dict[str, Any]], Tensor]


def every_shard_runs() -> AbstractContextManager[Any]:
    """While this lasts, `TiledMLP` is `sequence_tiled_compute`, which loops over all shards."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledMLP, sequence_tiled_compute

    def apply(fn: Any, mlp: Any, x: Tensor, shards: int, params: list[Tensor]) -> Tensor:
        out: Tensor = sequence_tiled_compute(
            lambda x, mlp: fn(mlp, x),
            *(x.shape[1], shards, {"x": x}, {"mlp": mlp}, "x", params),
            output_unshard_dimension=1,
            output_reduction=None,
        )
        return out

    return patch.object(TiledMLP, "apply", apply)


@contextmanager
def mean_over_world() -> Iterator[None]:
    """While this lasts, every reduction divides by all ranks of its group."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    scatter = "_DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads"
    with ExitStack() as patches:
        for owner, name in (
            (DeepSpeedEngine, "_reduce_non_expert_gradients"),
            (DeepSpeedZeroOptimizer, "average_tensor"),
            (DeepSpeedZeroOptimizer_Stage3, scatter),
        ):
            patches.enter_context(wrapped(owner, name, _undivided))
        yield


def _undivided(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with patch.object(self, "sequence_parallel_size", 1):
            return method(self, *args, **kwargs)

    return call


def head_scaled() -> AbstractContextManager[Any]:
    """While this lasts, backward scales the head's gradient that forward has computed."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    forward, backward = TiledFusedLogitsLoss.forward, TiledFusedLogitsLoss.backward

    def forward_held(ctx: Any, *args: Any) -> Any:
        *_, parameters, _ = args
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        out = forward(ctx, *args)
        ctx.held = [(parameter, parameter.grad) for parameter in parameters]
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad
        return out

    def backward_scaled(ctx: Any, grad: Tensor) -> Any:
        for parameter, held in ctx.held:
            scaled = held * grad
            parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
        return backward(ctx, grad)

    return patch.multiple(
        TiledFusedLogitsLoss,
        forward=staticmethod(forward_held),
        backward=staticmethod(backward_scaled),
    )


def mean_of_tiles() -> AbstractContextManager[Any]:
    """While this lasts, the loss gets as many shards as it makes tiles, which stay the same."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    forward = TiledFusedLogitsLoss.forward

    def forward_by_tiles(ctx: Any, *args: Any) -> Any:
        fn, head, x, y, mask, shards, *rest = args
        tiles = len(torch.empty(y.numel()).chunk(shards))
        return forward(ctx, fn, head, x, y, mask, tiles, *rest)

    return patch.object(TiledFusedLogitsLoss, "forward", staticmethod(forward_by_tiles))


def own_gradient() -> AbstractContextManager[Any]:
    """While this lasts, backward divides a copy of the gradient."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import SequenceTiledCompute

    backward = SequenceTiledCompute.backward

    def backward_of_copies(ctx: Any, *grads: Tensor) -> Any:
        return backward(ctx, *(grad.clone() for grad in grads))

    return patch.object(SequenceTiledCompute, "backward", staticmethod(backward_of_copies))


def means_of_something() -> AbstractContextManager[Any]:
    """While this lasts, the tutorial's aggregation, in our wiring, leaves out means of nothing."""
    from harness.candidates.published.deepspeed import alst

    tutorial = alst.aggregated

    def aggregated(loss: Tensor, shift_labels: Tensor, rank: Any) -> Tensor:
        return tutorial(_zero_without_targets(loss, shift_labels), shift_labels, rank)

    return patch.object(alst, "aggregated", aggregated)


def mean_of_nothing() -> AbstractContextManager[Any]:
    """While this lasts, the loss of transformers is zero where nothing is learnt."""
    from transformers.loss import loss_utils

    entropy = loss_utils.fixed_cross_entropy

    def mean(source: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _zero_without_targets(entropy(source, target, *args, **kwargs), target)

    return patch.object(loss_utils, "fixed_cross_entropy", mean)


def _zero_without_targets(loss: Tensor, labels: Tensor) -> Tensor:
    """Return the loss, or without targets a zero that has no gradient."""
    return torch.where((labels != IGNORED).any(), loss, torch.zeros_like(loss))


def documents_apart() -> AbstractContextManager[Any]:
    """While this lasts, a document begins where positions do not increase by one.

    transformers looks for that too.
    """

    def see(options: dict[str, Any]) -> Tensor:
        steps_BS = options["position_ids"].diff(dim=1) != 1
        document_BS = F.pad(steps_BS.cumsum(1), (1, 0))
        return document_BS[:, :, None] == document_BS[:, None, :]

    return _registering(inside=_masked(see))


def window_kept() -> AbstractContextManager[Any]:
    """While this lasts, the window of every layer reaches its attention."""

    def see(options: dict[str, Any]) -> Tensor:
        position_BS = options["position_ids"]
        columns_S = torch.arange(position_BS.shape[1], device=position_BS.device)
        window = options.get("sliding_window") or len(columns_S)
        return (columns_S[:, None] - columns_S < window)[None]

    return _registering(inside=_masked(see))


def padding_hidden() -> AbstractContextManager[Any]:
    """While this lasts, ranks gather which tokens are real, as a mask for the core attention."""
    from deepspeed.utils import groups

    def gathering(attend: Attend) -> Attend:
        def call(
            layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
        ) -> Any:
            real_Bs = torch.ones(len(q), q.shape[2], dtype=torch.uint8, device=q.device)
            if mask is not None:
                # Only padding does not see itself.
                real_Bs[:] = mask if mask.ndim == 2 else mask[:, 0].diagonal(dim1=1, dim2=2)
            group = groups._get_sequence_parallel_group()
            pieces = [torch.empty_like(real_Bs) for _ in range(group.size())]
            torch.distributed.all_gather(pieces, real_Bs, group=group)
            return attend(layer, q, k, v, mask, **options, real=torch.cat(pieces, 1).bool())

        return call

    def masking(attend: Attend) -> Attend:
        masked = _masked(lambda options: options.pop("real")[:, None, :])(attend)

        def call(
            layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
        ) -> Any:
            if layer.config._attn_implementation == "sdpa":
                return masked(layer, q, k, v, mask, **options)
            # Flash attention takes a table of real tokens, or None where nothing is padded.
            real_BS = options.pop("real")
            return attend(layer, q, k, v, None if real_BS.all() else real_BS, **options)

        return call

    return _registering(inside=masking, outside=gathering)


def _masked(see: See) -> Callable[[Attend], Attend]:
    """Wrap an attention so that its mask also hides what `see` does not allow."""

    def around(attend: Attend) -> Attend:
        def call(
            layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **options: Any
        ) -> Any:
            everything_SS = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
            # Padding sees itself: a softmax over nothing would be NaN.
            seen_BSS = see(options) | everything_SS.triu().tril()
            before = everything_SS.tril() if mask is None else mask
            return attend(layer, q, k, v, before & seen_BSS[:, None], **options)

        return call

    return around


def _registering(
    *, inside: Callable[[Attend], Attend], outside: Callable[[Attend], Attend] = lambda it: it
) -> AbstractContextManager[Any]:
    """While this lasts, put `inside` around the core and `outside` around the exchange."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original = UlyssesSPAttentionHF.register_with_transformers

    def register(**options: Any) -> Any:
        core = options["core_attn_implementation"]
        is_shared = options["sequence_parallel_size"] > 1
        if is_shared:
            ALL_ATTENTION_FUNCTIONS[core] = inside(ALL_ATTENTION_FUNCTIONS[core])
        mpu = original(**options)
        if is_shared:
            ALL_ATTENTION_FUNCTIONS[core] = outside(ALL_ATTENTION_FUNCTIONS[core])
        return mpu

    return patch.object(UlyssesSPAttentionHF, "register_with_transformers", register)


MENDS: dict[str, Mend] = {
    "tiled-mlp-never-reduced": every_shard_runs,
    "engine-gradients-times-sp": mean_over_world,
    "tiled-fused-head-not-scaled": head_scaled,
    "tiled-fused-mean-of-fewer-tiles": mean_of_tiles,
    "tiled-mean-spoils-other-gradients": own_gradient,
    "recipe-without-targets": means_of_something,
    "recipe-without-targets-alone": mean_of_nothing,
    "packed-rows-leak": documents_apart,
    "window-dropped": window_kept,
    "left-padding-attended": padding_hidden,
}
