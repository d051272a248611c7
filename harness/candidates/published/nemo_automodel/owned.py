"""Models that cut their embeddings in their own forward, as the library's Qwen3.5 does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from nemo_automodel.components.distributed import blockdiag_cp
from nemo_automodel.components.distributed.blockdiag_cp import kernels
from nemo_automodel.components.distributed.context_parallel import sharder as cut
from torch import nn
from torch.nn import functional as F

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.nemo_automodel.mesh import Mesh
from harness.candidates.published.nemo_automodel.released import NUMBERS, Batch
from harness.candidates.published.wiring.stand_ins import Replacing


def embed_then_cut(model: nn.Module, mesh: Mesh, shard: Callable[..., Any]) -> None:
    """Let the model get all ids, and continue with this rank's part of their embeddings."""

    def before(_: nn.Module, args: Any, kwargs: Batch) -> tuple[Any, Batch]:
        ids = kwargs.pop("input_ids")
        embedded = model.get_input_embeddings()(ids)  # type: ignore[operator]
        kwargs["inputs_embeds"], _, _ = shard(mesh["cp"], embedded)
        return args, kwargs

    if mesh["cp"].size() > 1:
        model.register_forward_pre_hook(before, with_kwargs=True)


def own_sharder(model: Any, shard: Callable[..., Any], indices: Callable[..., Any]) -> None:
    """Give a model the method from which the recipe takes its sharder."""

    def prepare(_: Batch, num_chunks: int) -> Batch:  # noqa: ARG001 - as it is called
        return {
            "cp_sharder": cut.ContextParallelSharder(
                shard_batch=shard, local_token_global_indices=indices
            )
        }

    model.prepare_model_inputs_for_cp = prepare


def ring(model: nn.Module, mesh: Mesh) -> None:
    """Prepare a model for rows in a table: torch's ring, with ids that stay whole."""
    embed_then_cut(model, mesh, cut.shard_sequence_for_cp_round_robin)
    own_sharder(
        model,
        partial(cut.shard_batch_aux_only, extra_seq_buffers={NUMBERS: 1}),
        cut.round_robin_local_indices,
    )


def packed(model: nn.Module, mesh: Mesh, *, kernel: str, exchange: str) -> None:
    """Prepare a model for packed rows: the library exchanges keys and separates rows."""
    blockdiag_cp.configure_cp_varlen(attn_backend=kernel, kv_exchange=exchange)
    embed_then_cut(model, mesh, cut.shard_sequence_for_cp_contiguous)
    own_sharder(model, _cut_packed, cut.contiguous_local_indices)
    if mesh["cp"].size() > 1:
        # The library's Qwen3.5 dispatches in this way.
        attending(model, blockdiag_cp.cp_blockdiag_sdpa)


def _cut_packed(cp: Any, tp: Any, batch: Batch, **options: Any) -> tuple[Any, Batch, Any]:
    # The library cuts the mask of the loss but never reads it, so numbers travel in its place.
    options["loss_mask"] = batch.pop(NUMBERS)
    context, batch, layout = blockdiag_cp.make_cp_blockdiag_batch_and_ctx(
        cp, tp, batch, shard_primary=False, **options
    )
    batch[NUMBERS] = batch.pop("loss_mask")
    return context, batch, layout


def attending(model: nn.Module, attend: Callable[..., Any]) -> None:
    """Replace torch's attention by `attend` while a layer attends."""
    released = F.scaled_dot_product_attention

    def before(*_: Any) -> None:
        F.scaled_dot_product_attention = attend

    def after(*_: Any) -> None:
        F.scaled_dot_product_attention = released

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            inner = getattr(module, "_checkpoint_wrapped_module", module)
            inner.register_forward_pre_hook(before)
            inner.register_forward_hook(after, always_call=True)


def pretend_to_have_a_gpu() -> None:
    """Let the library call the stand-in for flash-attn, without a GPU and half precision."""
    flash.install()
    kernels.HAS_FLASH_VARLEN = True
    kernels._varlen_backend_unavailable_reason = lambda *_: None
    # The library casts to fp16; cases in half precision show little.
    kernels.torch = Replacing(torch, float16=torch.float32)
