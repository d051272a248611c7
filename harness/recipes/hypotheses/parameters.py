"""What a step can leave out of a model, or count otherwise: its sinks, a bias, a scale."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from harness.recipes.hypothesis import Hypothesis

# A sink of so little weight takes nothing from a softmax.
NOTHING = -1e30
# So many ranks may add the same bias, each to its part of a sum.
RANKS = (2, 4)


def of_parameters() -> list[Hypothesis]:
    return [
        Hypothesis("parameter-dropped", "no layer has sinks", model=_without_sinks),
        Hypothesis(
            "parameter-scaled",
            "embeddings are multiplied by the square root of their width once more",
            model=_embedding_more,
        ),
        *(
            Hypothesis(
                "parameter-scaled",
                f"the bias of attention's output counts {ranks} times",
                model=partial(_adding_biases, times=ranks),
            )
            for ranks in RANKS
        ),
    ]


def _without_sinks(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] == "sinks":
            parameter.data.fill_(NOTHING)
            parameter.requires_grad = False


def _embedding_more(model: nn.Module) -> None:
    def scaled(_embed: nn.Module, _given: Any, x_D: Tensor) -> Tensor:
        wide_D: Tensor = x_D * x_D.shape[-1] ** 0.5
        return wide_D

    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    if isinstance(embeddings, nn.Module):
        embeddings.register_forward_hook(scaled)


def _adding_biases(model: nn.Module, *, times: int) -> None:
    def added(out: Any, _given: Any, x_D: Tensor) -> Tensor:
        more_D: Tensor = x_D + (times - 1) * out.bias
        return more_D

    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "o_proj" and getattr(module, "bias", None) is not None:
            module.register_forward_hook(added)
