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

IGNORED = -100

# An attention as transformers calls it: (layer, q, k, v, mask, **told).
Attend = Callable[..., tuple[Tensor, Any]]
# see(keywords of a core attention) -> which tokens may attend to which: [B, S, S].
See = Callable[[dict[str, Any]], Tensor]


def every_shard_runs() -> AbstractContextManager[Any]:
    """`TiledMLP` runs `sequence_tiled_compute`, which always loops over all shards."""
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
    """Every reduction divides by all ranks of its group."""
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
            patches.enter_context(patch.object(owner, name, _undivided(getattr(owner, name))))
        yield


def _undivided(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        with patch.object(self, "sequence_parallel_size", 1):
            return method(self, *given, **named)

    return call


def head_scaled() -> AbstractContextManager[Any]:
    """Forward's part of the head's gradient is added in backward, times the factor given there."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    forward, backward = TiledFusedLogitsLoss.forward, TiledFusedLogitsLoss.backward

    def take(ctx: Any, *given: Any) -> Any:
        *_, parameters, _ = given
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        out = forward(ctx, *given)
        ctx.held = [(parameter, parameter.grad) for parameter in parameters]
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad
        return out

    def give(ctx: Any, grad: Tensor) -> Any:
        for parameter, held in ctx.held:
            scaled = held * grad
            parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
        return backward(ctx, grad)

    return patch.multiple(
        TiledFusedLogitsLoss, forward=staticmethod(take), backward=staticmethod(give)
    )


def mean_of_tiles() -> AbstractContextManager[Any]:
    """The loss is asked for as many shards as it makes tiles; the tiles stay the same."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import TiledFusedLogitsLoss

    forward = TiledFusedLogitsLoss.forward

    def take(ctx: Any, *given: Any) -> Any:
        fn, head, x, y, mask, shards, *rest = given
        tiles = len(torch.empty(y.numel()).chunk(shards))
        return forward(ctx, fn, head, x, y, mask, tiles, *rest)

    return patch.object(TiledFusedLogitsLoss, "forward", staticmethod(take))


def own_gradient() -> AbstractContextManager[Any]:
    """Backward divides a copy of the gradient."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import SequenceTiledCompute

    backward = SequenceTiledCompute.backward

    def give(ctx: Any, *grads: Tensor) -> Any:
        return backward(ctx, *(grad.clone() for grad in grads))

    return patch.object(SequenceTiledCompute, "backward", staticmethod(give))


def means_of_something() -> AbstractContextManager[Any]:
    """The tutorial's aggregation without the means of nothing. The tutorial is in our wiring."""
    from harness.candidates.published.deepspeed import alst

    weighted = alst.weighted

    def aggregate(loss: Tensor, shift_labels: Tensor, rank: Any) -> Tensor:
        return weighted(_real(loss, shift_labels), shift_labels, rank)

    return patch.object(alst, "weighted", aggregate)


def mean_of_nothing() -> AbstractContextManager[Any]:
    """The loss of transformers is zero where nothing is learnt."""
    from transformers.loss import loss_utils

    entropy = loss_utils.fixed_cross_entropy

    def mean(source: Tensor, target: Tensor, *given: Any, **named: Any) -> Tensor:
        return _real(entropy(source, target, *given, **named), target)

    return patch.object(loss_utils, "fixed_cross_entropy", mean)


def _real(loss: Tensor, labels: Tensor) -> Tensor:
    """The loss, or without targets a zero that has no gradient."""
    return torch.where((labels != IGNORED).any(), loss, torch.zeros_like(loss))


def documents_apart() -> AbstractContextManager[Any]:
    """A document begins where positions do not go on by one; transformers looks for that too."""

    def see(told: dict[str, Any]) -> Tensor:
        steps_BS = told["position_ids"].diff(dim=1) != 1
        document_BS = F.pad(steps_BS.cumsum(1), (1, 0))
        return document_BS[:, :, None] == document_BS[:, None, :]

    return _registering(inside=_masked(see))


def window_kept() -> AbstractContextManager[Any]:
    """Every layer says how far it sees."""

    def see(told: dict[str, Any]) -> Tensor:
        position_BS = told["position_ids"]
        places_S = torch.arange(position_BS.shape[1], device=position_BS.device)
        window = told.get("sliding_window") or len(places_S)
        return (places_S[:, None] - places_S < window)[None]

    return _registering(inside=_masked(see))


def padding_hidden() -> AbstractContextManager[Any]:
    """Ranks gather which tokens are real, and core attention gets that as its mask."""
    from deepspeed.utils import groups

    def gathering(attend: Attend) -> Attend:
        def call(
            layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any
        ) -> Any:
            real_Bs = torch.ones(len(q), q.shape[2], dtype=torch.uint8, device=q.device)
            if mask is not None:
                # Only padding does not see itself.
                real_Bs[:] = mask if mask.ndim == 2 else mask[:, 0].diagonal(dim1=1, dim2=2)
            group = groups._get_sequence_parallel_group()
            pieces = [torch.empty_like(real_Bs) for _ in range(group.size())]
            torch.distributed.all_gather(pieces, real_Bs, group=group)
            return attend(layer, q, k, v, mask, **told, real=torch.cat(pieces, 1).bool())

        return call

    def telling(attend: Attend) -> Attend:
        masked = _masked(lambda told: told.pop("real")[:, None, :])(attend)

        def call(
            layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any
        ) -> Any:
            if layer.config._attn_implementation == "sdpa":
                return masked(layer, q, k, v, mask, **told)
            # Flash attention takes a table of real tokens, or None where nothing is padded.
            real_BS = told.pop("real")
            return attend(layer, q, k, v, None if real_BS.all() else real_BS, **told)

        return call

    return _registering(inside=telling, outside=gathering)


def _masked(see: See) -> Callable[[Attend], Attend]:
    """Wrap an attention, whose mask then hides what `see` does not allow."""

    def wrapped(attend: Attend) -> Attend:
        def call(
            layer: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **told: Any
        ) -> Any:
            everything_SS = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device)
            # Padding sees itself: a softmax over nothing would be NaN.
            seen_BSS = see(told) | everything_SS.triu().tril()
            before = everything_SS.tril() if mask is None else mask
            return attend(layer, q, k, v, before & seen_BSS[:, None], **told)

        return call

    return wrapped


def _registering(
    *, inside: Callable[[Attend], Attend], outside: Callable[[Attend], Attend] = lambda it: it
) -> AbstractContextManager[Any]:
    """Register as released, with `inside` around the core and `outside` around the exchange."""
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    original = UlyssesSPAttentionHF.register_with_transformers

    def register(**named: Any) -> Any:
        core, alone = named["core_attn_implementation"], named["sequence_parallel_size"] == 1
        if not alone:
            ALL_ATTENTION_FUNCTIONS[core] = inside(ALL_ATTENTION_FUNCTIONS[core])
        mpu = original(**named)
        if not alone:
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
