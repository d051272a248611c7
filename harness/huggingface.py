"""A transformers model with a case's weights, and what it computes, by our names.

Nothing here imports transformers before a model is asked for.
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

# emit(key, tensor, tokens), as a candidate is given it.
Tell = Callable[[str, Tensor, Tensor], None]


def refuses(case: Case) -> str | None:
    """None, or why no transformers model can be held to this case; for `supports`."""
    if case.dtype == "fp64" and not asked_for_an_oracle():
        return "dtype=fp64: transformers computes norms and rotations in fp32; use --dtype fp32"
    if case.mixed:
        return "mixed=1: the model is held in the dtype that it computes with"
    return None


def build(case: Case, device: torch.device, attn_implementation: str = "sdpa") -> Any:
    """The model of the case as transformers has it, with the case's weights."""
    import transformers

    model = getattr(transformers, f"{_kind(case)}ForCausalLM")(config(case, attn_implementation))
    return load(model, case, device)


def config(case: Case, attn_implementation: str = "sdpa") -> Any:
    """The architecture of the case, for a model class of your own."""
    import transformers

    options: dict[str, Any] = {
        "vocab_size": case.vocab,
        "hidden_size": case.heads * case.head_dim,
        "intermediate_size": 2 * case.heads * case.head_dim,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "head_dim": case.head_dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": case.tied,
        "attention_bias": False,
        "attn_implementation": attn_implementation,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
    }
    if case.window is not None:
        # The last two are for a Qwen, which by itself has no window in its first layers.
        options |= {
            "sliding_window": case.window,
            "use_sliding_window": True,
            "max_window_layers": 0,
        }
    return getattr(transformers, f"{_kind(case)}Config")(**options)


def load(model: Any, case: Case, device: torch.device) -> Any:
    """Give a model the case's weights and dtype, on the device."""
    model.to(device).train()
    named = parameters(model, case)
    # Not `model.to(dtype)`, which in half precision rounds the frequencies of the rotation too.
    for ours, weight in seeded_weights(case, TORCH_DTYPES[case.dtype]).items():
        named[ours].data = weight.to(device)
    if case.checkpoint:
        # Older releases have only the second; newer ones warn of it.
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        enable = next(getattr(model, name) for name in names if hasattr(model, name))
        enable({"use_reentrant": False})
    return model


def parameters(model: Any, case: Case) -> dict[str, nn.Parameter]:
    """By our names; a tied head is `embed`."""
    names, theirs = dict(_names(case)), dict(model.named_parameters())
    if set(names.values()) != set(theirs):
        raise RuntimeError(
            f"{type(model).__name__} has other parameters than the case: "
            f"{sorted(set(names.values()) ^ set(theirs))}"
        )
    return {ours: theirs[name] for ours, name in names.items()}


def gradients(model: Any, case: Case) -> Iterator[tuple[str, Tensor]]:
    """Every `grad.` key with its gradient, in the same order on all ranks.

    What backward never reached has a gradient of zeros: each rank can take part in each sum.
    """
    for name, parameter in parameters(model, case).items():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        yield f"grad.{name}", parameter.grad


def _kind(case: Case) -> str:
    """How names of classes begin; transformers gives a Llama with a window another one."""
    windowed = case.model == "llama" and case.window is not None
    return "Mistral" if windowed else case.model.capitalize()


def _names(case: Case) -> Iterator[tuple[str, str]]:
    """Every parameter of ours, and what transformers calls it."""
    yield "embed", "model.embed_tokens.weight"
    for i in range(case.layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        yield f"{ours}.attn_norm", f"{theirs}.input_layernorm.weight"
        yield f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm.weight"
        for part in "qkvo":
            yield f"{ours}.{part}", f"{theirs}.self_attn.{part}_proj.weight"
        for part in "qkv" if case.model == "qwen2" else "":
            yield f"{ours}.{part}_bias", f"{theirs}.self_attn.{part}_proj.bias"
        for part in "qk" if case.model == "qwen3" else "":
            yield f"{ours}.{part}_norm", f"{theirs}.self_attn.{part}_norm.weight"
        for part in ("gate", "up", "down"):
            yield f"{ours}.{part}", f"{theirs}.mlp.{part}_proj.weight"
    yield "norm", "model.norm.weight"
    if not case.tied:
        yield "head", "lm_head.weight"


@contextmanager
def watched(model: Any, case: Case, emit: Tell, tokens: Tensor) -> Iterator[None]:
    """While this lasts, emit what a forward computes; `tokens` are those of its input ids.

    Once: neither what backward computes again where activations are not kept, nor what another
    forward does, is emitted.
    """
    tokens, told = tokens.flatten(), set[str]()

    def tell(key: str, tensor: Tensor) -> None:
        if key not in told:
            told.add(key)
            # All of them have a batch, which may be of one row, and then tokens.
            emit(key, tensor.flatten(0, 1), tokens)

    def heads(tensor: Tensor) -> Tensor:
        split: Tensor = tensor.unflatten(-1, (-1, case.head_dim))
        return split

    with ExitStack() as hooks:

        def after(module: nn.Module, say: Callable[[Any], None]) -> None:
            hooks.callback(module.register_forward_hook(lambda *seen: say(seen[2])).remove)

        after(model.model.embed_tokens, lambda out: tell("embed", out))
        after(model.lm_head, lambda out: tell("logits", out))
        for i, layer in enumerate(model.model.layers):
            _watch_layer(f"layers.{i}", layer, after, hooks, tell, heads)
        _watch_rotation(model, hooks, tell)
        yield


def _watch_layer(
    name: str,
    layer: Any,
    after: Callable[[nn.Module, Callable[[Any], None]], None],
    hooks: ExitStack,
    tell: Callable[[str, Tensor], None],
    heads: Callable[[Tensor], Tensor],
) -> None:
    # Older releases hand a tuple on.
    after(layer, lambda out: tell(f"{name}.out", out[0] if isinstance(out, tuple) else out))
    after(layer.self_attn.v_proj, lambda out: tell(f"{name}.attn.v", heads(out)))
    before = layer.self_attn.o_proj.register_forward_pre_hook(
        lambda _, given: tell(f"{name}.attn.out", heads(given[0]))
    )
    hooks.callback(before.remove)


def _watch_rotation(model: Any, hooks: ExitStack, tell: Callable[[str, Tensor], None]) -> None:
    """Queries and keys are seen nowhere but where they come from the rotation, layer by layer."""
    # Where the attention is from, which a class derived from a published one has as it was.
    module = sys.modules[type(model.model.layers[0].self_attn).__module__]
    original, layer = module.apply_rotary_pos_emb, 0

    def enters(number: int) -> Callable[..., None]:
        def note(*_: Any) -> None:
            nonlocal layer
            layer = number

        return note

    # By what attention runs and not by counting: backward may run some of them again.
    for number, each in enumerate(model.model.layers):
        hooks.callback(each.self_attn.register_forward_pre_hook(enters(number)).remove)

    def rotate(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        q, k = original(*given, **named)
        tell(f"layers.{layer}.attn.q", q.transpose(1, 2))
        tell(f"layers.{layer}.attn.k", k.transpose(1, 2))
        return q, k

    hooks.enter_context(patch.object(module, "apply_rotary_pos_emb", rotate))
