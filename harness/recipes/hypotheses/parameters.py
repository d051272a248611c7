"""What a step can leave out of a model: a parameter that a wrapper does not hand on."""

from functools import partial

from torch import nn

from harness.recipes.hypothesis import Hypothesis

# The last part of a parameter's name, and the number with which it does nothing.
DROPPED = {"sinks": -1e30}


def of_parameters() -> list[Hypothesis]:
    return [
        Hypothesis("parameter-dropped", f"no layer has {name}", model=partial(_drop, name=name))
        for name in DROPPED
    ]


def _drop(model: nn.Module, *, name: str) -> None:
    for path, parameter in model.named_parameters():
        if path.rpartition(".")[2] == name:
            parameter.data.fill_(DROPPED[name])
            parameter.requires_grad = False
