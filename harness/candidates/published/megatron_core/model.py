"""Megatron-Core's GPT with the weights of a case.

Legend: D hidden, G key-value groups.
"""

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional as F

from harness.candidates.published.megatron_core.attention import Attention
from harness.case import Case
from harness.reference.weights import TORCH_DTYPES, seeded_weights


def config_of(case: Case, *, per_token: bool, **more: Any) -> TransformerConfig:
    """Return the config that a training script makes from its arguments."""
    return TransformerConfig(
        num_layers=case.layers,
        hidden_size=case.heads * case.head_dim,
        ffn_hidden_size=2 * case.heads * case.head_dim,
        num_attention_heads=case.heads,
        num_query_groups=case.kv_heads,
        kv_channels=case.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=1e-6,
        qk_layernorm=case.model == "qwen3",
        add_bias_linear=False,
        add_qkv_bias=case.model == "qwen2",
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        params_dtype=TORCH_DTYPES[case.dtype],
        use_cpu_initialization=True,
        perform_initialization=False,
        context_parallel_size=case.sp,
        calculate_per_token_loss=per_token,
        mtp_loss_scaling_factor=1.0,
        **more,
    )


def build(case: Case, config: TransformerConfig, groups: ProcessGroupCollection) -> GPTModel:
    """Return a GPT of the local spec with our attention; a depth does not norm embeddings."""
    spec = get_gpt_layer_local_spec(
        qk_layernorm=config.qk_layernorm, normalization=config.normalization
    )
    spec.submodules.self_attention.submodules.core_attention = Attention
    depths = None
    if config.mtp_num_layers:
        depths = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
        depths.layer_specs[0].submodules.enorm = IdentityOp
    return GPTModel(
        config,
        spec,
        vocab_size=case.vocab,
        max_sequence_length=max(map(len, case.rows)),
        share_embeddings_and_output_weights=case.tied,
        position_embedding_type="rope",
        mtp_block_spec=depths,
        pg_collection=groups,
    )


def load(model: GPTModel, case: Case) -> None:
    """Load the case's weights; a further depth gets those of the only decoder layer."""
    weights = seeded_weights(case, TORCH_DTYPES[case.dtype])
    with torch.no_grad():
        for depth in model.mtp.layers if model.mtp_process else []:
            width = model.config.hidden_size
            depth.hnorm.weight.fill_(1)
            # The projection keeps the embedding of the token ahead and drops the hidden state.
            depth.eh_proj.weight.copy_(torch.eye(width, 2 * width))
            # A case has no weights for these, so they stay as they are.
            for part in (model.decoder, depth.hnorm, depth.eh_proj):
                part.requires_grad_(False)
            for name, view in views(model, case, ahead=False):
                view.copy_(weights[name].view_as(view))
        for name, view in views(model, case, ahead=model.mtp_process):
            view.copy_(weights[name].view_as(view))


def gradients(model: GPTModel, case: Case) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradients that an optimizer sees, by our names."""
    shapes = {name: weight.shape for name, weight in seeded_weights(case, torch.float32).items()}
    for name, view in views(model, case, ahead=model.mtp_process, attribute="main_grad"):
        yield name, view.reshape(shapes[name])


def views(
    model: GPTModel, case: Case, *, ahead: bool, attribute: str = "data"
) -> Iterator[tuple[str, Tensor]]:
    """Yield each of our parameters as a view of the library's: its value, or another attribute."""

    def of(module: nn.Module, name: str = "weight") -> Tensor:
        tensor: Tensor = getattr(getattr(module, name), attribute)
        return tensor

    yield "embed", of(model.embedding.word_embeddings)
    layers = [model.mtp.layers[0].mtp_model_layer] if ahead else model.decoder.layers
    for i, layer in enumerate(layers):
        yield from ((f"layers.{i}.{name}", x) for name, x in _of_layer(layer, case, of))
    final = model.mtp.layers[0] if ahead else model.decoder
    yield "norm", of(final.final_layernorm)
    if not case.tied:
        yield "head", of(model.output_layer)


def _of_layer(layer: Any, case: Case, of: Any) -> Iterator[tuple[str, Tensor]]:
    attention = layer.self_attention
    yield "attn_norm", of(layer.input_layernorm)
    for name, kind in (("weight", ""), ("bias", "_bias")):
        if name == "weight" or case.model == "qwen2":
            # Each group has its heads of queries, then one of keys and one of values.
            fused = of(attention.linear_qkv, name)
            groups_G = fused.view(case.kv_heads, -1, case.head_dim, *fused.shape[1:])
            yield f"q{kind}", groups_G[:, :-2]
            yield f"k{kind}", groups_G[:, -2]
            yield f"v{kind}", groups_G[:, -1]
    if case.model == "qwen3":
        yield "q_norm", of(attention.q_layernorm)
        yield "k_norm", of(attention.k_layernorm)
    yield "o", of(attention.linear_proj)
    yield "mlp_norm", of(layer.pre_mlp_layernorm)
    gate, up = of(layer.mlp.linear_fc1).chunk(2)
    yield "gate", gate
    yield "up", up
    yield "down", of(layer.mlp.linear_fc2)
