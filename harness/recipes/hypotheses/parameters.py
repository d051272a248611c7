"""What a step can leave out of a model: a parameter that a wrapper does not hand on."""

from torch import nn

from harness.recipes.hypothesis import Hypothesis

# A sink of so little weight takes nothing from a softmax.
NOTHING = -1e30


def of_parameters() -> list[Hypothesis]:
    return [Hypothesis("parameter-dropped", "no layer has sinks", model=_without_sinks)]


def _without_sinks(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] == "sinks":
            parameter.data.fill_(NOTHING)
            parameter.requires_grad = False
