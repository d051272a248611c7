"""Build a transformers model with a case's weights, and emit what it computes, by our names.

Importing this module does not import transformers; building a model or its config does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from harness.against import asked_for_an_oracle
from harness.case import Case
from harness.reference.weights import TORCH_DTYPES, seeded_weights

# emit(key, tensor, tokens), as the harness passes it to a candidate.
Emit = Callable[[str, Tensor, Tensor], None]
# Emits a tensor, of the input tokens, the first time that its key occurs.
EmitOnce = Callable[[str, Tensor], None]


def refuses(case: Case) -> str | None:
    """Return None, or why no transformers model can be held to this case; for `supports`."""
    if case.dtype == "fp64" and not asked_for_an_oracle():
        return "dtype=fp64: transformers computes norms and rotations in fp32; use --dtype fp32"
    if case.mixed:
        return "mixed=1: the model is held in the dtype that it computes with"
    return None


def build(case: Case, device: torch.device, attn_implementation: str = "sdpa") -> Any:
    """Return the transformers model of the case, with the case's weights."""
    import transformers

    model = getattr(transformers, f"{_kind(case)}ForCausalLM")(config(case, attn_implementation))
    return load(model, case, device)


def sizes(case: Case) -> dict[str, Any]:
    """Return the options for the sizes of a case that all configurations take."""
    return {
        "vocab_size": case.vocab,
        "hidden_size": case.heads * case.head_dim,
        "intermediate_size": 2 * case.heads * case.head_dim,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "tie_word_embeddings": case.tied,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }


def config(case: Case, attn_implementation: str = "sdpa") -> Any:
    """Return the architecture of the case, for a model class of your own."""
    import transformers

    options = sizes(case) | {
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attn_implementation": attn_implementation,
    }
    if case.window is not None:
        # The last two are for Qwen, whose first layers have no window by default.
        options |= {
            "sliding_window": case.window,
            "use_sliding_window": True,
            "max_window_layers": 0,
        }
    return getattr(transformers, f"{_kind(case)}Config")(**options)


def load(model: Any, case: Case, device: torch.device) -> Any:
    """Move a model to the device, and give it the case's weights and dtype."""
    model.to(device).train()
    by_name = parameters(model, case)
    # `model.to(dtype)` would in half precision round the frequencies of the rotation as well.
    for name, weight in seeded_weights(case, TORCH_DTYPES[case.dtype]).items():
        by_name[name].data = weight.to(device)
    if case.checkpoint:
        # Older releases have the second name only; newer ones warn when it is used.
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        enable = next(getattr(model, name) for name in names if hasattr(model, name))
        enable({"use_reentrant": False})
    return model


def parameters(model: Any, case: Case) -> dict[str, nn.Parameter]:
    """Return the parameters by our names; a tied head is `embed`.

    Raises RuntimeError if the model has other parameters than the case.
    """
    names, found = dict(_names(case)), dict(model.named_parameters())
    if set(names.values()) != set(found):
        raise RuntimeError(
            f"{type(model).__name__} has other parameters than the case: "
            f"{sorted(set(names.values()) ^ set(found))}"
        )
    return {our_name: found[their_name] for our_name, their_name in names.items()}


def gradients(model: Any, case: Case) -> Iterator[tuple[str, Tensor]]:
    """Yield every `grad.` key with its gradient, in the same order on all ranks.

    A parameter that backward never reached gets a gradient of zeros, so that each rank can take
    part in each reduction.
    """
    for name, parameter in parameters(model, case).items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        yield f"grad.{name}", parameter.grad


def _kind(case: Case) -> str:
    """Return how the class names begin; in transformers a Llama with a window is a Mistral."""
    has_window = case.model == "llama" and case.window is not None
    return "Mistral" if has_window else case.model.capitalize()


def _names(case: Case) -> Iterator[tuple[str, str]]:
    """Yield our name and transformers' name of every parameter."""
    yield "embed", "model.embed_tokens.weight"
    for i in range(case.layers):
        our_layer, their_layer = f"layers.{i}", f"model.layers.{i}"
        yield f"{our_layer}.attn_norm", f"{their_layer}.input_layernorm.weight"
        yield f"{our_layer}.mlp_norm", f"{their_layer}.post_attention_layernorm.weight"
        for part in "qkvo":
            yield f"{our_layer}.{part}", f"{their_layer}.self_attn.{part}_proj.weight"
        for part in "qkv" if case.model == "qwen2" else "":
            yield f"{our_layer}.{part}_bias", f"{their_layer}.self_attn.{part}_proj.bias"
        for part in "qk" if case.model == "qwen3" else "":
            yield f"{our_layer}.{part}_norm", f"{their_layer}.self_attn.{part}_norm.weight"
        for part in ("gate", "up", "down"):
            yield f"{our_layer}.{part}", f"{their_layer}.mlp.{part}_proj.weight"
    yield "norm", "model.norm.weight"
    if not case.tied:
        yield "head", "lm_head.weight"


@contextmanager
def watched(model: Any, case: Case, emit: Emit, tokens: Tensor) -> Iterator[None]:
    """Emit what a forward computes while the context lasts; `tokens` are those of its input ids.

    Each key is emitted once: backward may compute activations again, and another forward may
    follow, without emitting anything.
    """
    tokens, emitted = tokens.flatten(), set[str]()

    def emit_once(key: str, tensor: Tensor) -> None:
        if key not in emitted:
            emitted.add(key)
            # The first two dims are a batch, perhaps of one row, and its tokens.
            emit(key, tensor.flatten(0, 1), tokens)

    def split_heads(tensor: Tensor) -> Tensor:
        split: Tensor = tensor.unflatten(-1, (-1, case.head_dim))
        return split

    with ExitStack() as hooks:

        def on_output(module: nn.Module, callback: Callable[[Any], None]) -> None:
            hook = module.register_forward_hook(lambda *arguments: callback(arguments[2]))
            hooks.callback(hook.remove)

        on_output(model.model.embed_tokens, lambda out: emit_once("embed", out))
        on_output(model.lm_head, lambda out: emit_once("logits", out))
        for i, layer in enumerate(model.model.layers):
            _watch_layer(f"layers.{i}", layer, on_output, hooks, emit_once, split_heads)
        _watch_rotation(model, hooks, emit_once)
        yield


def _watch_layer(
    name: str,
    layer: Any,
    on_output: Callable[[nn.Module, Callable[[Any], None]], None],
    hooks: ExitStack,
    emit_once: EmitOnce,
    split_heads: Callable[[Tensor], Tensor],
) -> None:
    # In older releases a layer returns a tuple.
    on_output(
        layer, lambda out: emit_once(f"{name}.out", out[0] if isinstance(out, tuple) else out)
    )
    on_output(layer.self_attn.v_proj, lambda out: emit_once(f"{name}.attn.v", split_heads(out)))
    hook = layer.self_attn.o_proj.register_forward_pre_hook(
        lambda _, inputs: emit_once(f"{name}.attn.out", split_heads(inputs[0]))
    )
    hooks.callback(hook.remove)


def _watch_rotation(model: Any, hooks: ExitStack, emit_once: EmitOnce) -> None:
    """Emit queries and keys as the rotation returns them: no module has them as its output."""
    # A derived model class keeps the attention of the published one; its module has the rotation.
    module = sys.modules[type(model.model.layers[0].self_attn).__module__]
    original, layer = module.apply_rotary_pos_emb, 0

    def on_entry(number: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            nonlocal layer
            layer = number

        return note

    # Counting calls would not do: backward may run some layers again.
    for number, decoder_layer in enumerate(model.model.layers):
        hook = decoder_layer.self_attn.register_forward_pre_hook(on_entry(number))
        hooks.callback(hook.remove)

    def rotate(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        q, k = original(*args, **kwargs)
        emit_once(f"layers.{layer}.attn.q", q.transpose(1, 2))
        emit_once(f"layers.{layer}.attn.k", k.transpose(1, 2))
        return q, k

    hooks.enter_context(patch.object(module, "apply_rotary_pos_emb", rotate))
