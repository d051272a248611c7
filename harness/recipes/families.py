"""Models by family, as transformers has them, at the size that a case gives."""

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Any

from torch import nn

from harness.case import Case
from harness.case.stated import InvalidField
from harness.huggingface import sizes
from harness.recipes.recipe import Build, Recipe

Options = dict[str, Any]


def _usual(case: Case) -> Options:
    return sizes(case) | {"attn_implementation": "sdpa" if case.kernel == "sdpa" else "eager"}


def _windowed(case: Case) -> Options:
    """A window in every layer, if the case has one."""
    if case.window is None:
        return {"sliding_window": None}
    return {"sliding_window": case.window, "use_sliding_window": True, "max_window_layers": 0}


def _routed(case: Case) -> Options:
    """A few experts, of which each token meets two."""
    return {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": case.heads * case.head_dim,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.01,
        "experts_implementation": "eager",
    }


def _gpt_oss(case: Case) -> Options:
    return {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": case.window or 4,
        "layer_types": _alternating(case, "sliding_attention", "full_attention"),
        "experts_implementation": "eager",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        # It has no other.
        "attn_implementation": "eager",
    }


def _gemma_3(case: Case) -> Options:
    return {
        "sliding_window": case.window or 4,
        "layer_types": _alternating(case, "sliding_attention", "full_attention"),
        "query_pre_attn_scalar": case.head_dim,
    }


def _deepseek_v3(case: Case) -> Options:
    """Latent attention, a dense layer, and then experts of which one is shared."""
    return {
        "num_key_value_heads": case.heads,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": case.head_dim,
        "qk_rope_head_dim": 4,
        "head_dim": 4,
        "v_head_dim": case.head_dim,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": case.heads * case.head_dim,
        "first_k_dense_replace": 1,
        "experts_implementation": "eager",
    }


def _qwen3_next(case: Case) -> Options:
    """Gated delta layers and full attention by turns, with experts."""
    return _routed(case) | {
        "layer_types": _alternating(case, "linear_attention", "full_attention"),
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 4,
        "linear_value_head_dim": 4,
        "shared_expert_intermediate_size": case.heads * case.head_dim,
    }


def _alternating(case: Case, *types: str) -> list[str]:
    return [types[layer % len(types)] for layer in range(case.layers)]


# By name: the class of transformers without its ending, and options beside the usual ones.
FAMILIES: dict[str, tuple[str, Callable[[Case], Options]]] = {
    "llama": ("Llama", lambda _: {}),
    "mistral": ("Mistral", _windowed),
    "qwen3": ("Qwen3", _windowed),
    "qwen3-moe": ("Qwen3Moe", _routed),
    "gpt-oss": ("GptOss", _gpt_oss),
    "gemma-3": ("Gemma3", _gemma_3),
    "deepseek-v3": ("DeepseekV3", _deepseek_v3),
    "qwen3-next": ("Qwen3Next", _qwen3_next),
}


def family(name: str, *, head: str = "CausalLM") -> Build:
    """Build models of a family: `Recipe(family("gpt-oss"), loss)`.

    A critic has another head, with one number for each token: `head="TokenClassification"`. That
    of a reward model has one for each row: `head="SequenceClassification"`.
    """
    require_known(name)
    return partial(_of, name, head)


def any_family(*, head: str = "CausalLM") -> Build:
    """Build models of the family that a case has: `settings={"family": ("llama", "qwen3")}`."""

    def build(case: Case, *, family: str) -> nn.Module:
        return _of(family, head, case)

    return build


def families_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the families of the models that a recipe builds; none if they are of no family."""
    match unwrap(recipe.model):
        case partial(args=(str(name), *_)):
            return (name,)
    return tuple(map(str, recipe.settings.get("family", ())))


def require_known(name: str) -> None:
    if name not in FAMILIES:
        raise InvalidField(f"family {name}: the families are {', '.join(FAMILIES)}")


def _of(name: str, head: str, case: Case) -> nn.Module:
    import transformers

    require_known(name)
    prefix, options = FAMILIES[name]
    text = "Text" if prefix == "Gemma3" else ""
    given = _usual(case) | options(case)
    if head != "CausalLM":
        given |= {"num_labels": 1, "classifier_dropout": 0.0}
    config = getattr(transformers, f"{prefix}{text}Config")(**given)
    model: nn.Module = getattr(transformers, f"{prefix}For{head}")(config)
    return model
