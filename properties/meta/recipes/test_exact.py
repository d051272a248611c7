"""In fp64 a model of any family is exact to the last digits, however rows are laid out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.candidates.own.shares import LOSSES, step_of
from harness.case import Case, Row
from harness.recipes import Recipe, Step, losses
from harness.recipes.exact import exact
from harness.recipes.families import FAMILIES, family
from harness.trace import COLUMN

pytest.importorskip("transformers")
CASE = Case(rows=(Row("01101"), Row("011"), Row("0111011", side="left"), Row("01")), layers=2)
# Sums in another order differ in the last bits.
RELATIVE, ABSOLUTE = 1e-12, 1e-14


class Here:
    device = torch.device("cpu")


def plain(recipe: Recipe, variant: str, case: Case = CASE) -> dict[str, Tensor]:
    taken: dict[str, Tensor] = {}

    def emit(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        del tokens
        # Columns are given, and are padded as the batch is.
        if not key.startswith(COLUMN):
            taken[key] = tensor.clone()

    step = Step(lambda: None, recipe, micro_batches=False, limits="", supports=None)
    step.run_plain(case, Here(), emit, variant, exactly=True)  # type: ignore[arg-type]
    return taken


def agree(recipe: Recipe) -> None:
    once = plain(recipe, "plain")
    assert all(tensor.dtype == torch.float64 for tensor in once.values())
    assert all(tensor.any() for tensor in once.values())
    for variant in ("wider", "reversed"):
        for key, tensor in plain(recipe, variant).items():
            torch.testing.assert_close(tensor, once[key], rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", FAMILIES)
def test_padding_and_the_order_of_rows_change_no_digit_that_counts(name: str) -> None:
    agree(Recipe(family(name), losses.supervised))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_a_function_of_its_rows(name: str) -> None:
    model = "qwen3_moe" if name.startswith("balanced") else "llama"
    agree(step_of(f"{model}__{name}").recipe)


class Casts(nn.Module):
    """Asks for fp32 in each of the ways in which models do."""

    def forward(self, x: Tensor) -> Tensor:
        table = torch.arange(4, dtype=torch.float32) / 3
        softmax = x.softmax(-1, dtype=torch.float32)
        return x.float() + x.to(torch.float32) + x.type(torch.float32) + softmax + table


def test_what_asks_for_fp32_gets_fp64_inside_and_fp32_outside() -> None:
    x = torch.rand(4, dtype=torch.float64)
    with exact():
        inside = Casts()(x)
        assert torch.tensor(0.5).dtype == torch.float64
    torch.testing.assert_close(
        inside,
        3 * x + x.softmax(-1) + torch.arange(4, dtype=torch.float64) / 3,
        rtol=RELATIVE,
        atol=ABSOLUTE,
    )
    assert Casts()(x).dtype == torch.float32
    assert torch.tensor(0.5).dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_is_computed_again_in_fp64(*, reentrant: bool) -> None:
    def building(case: Case) -> nn.Module:
        model: Any = family("llama")(case)
        for layer in model.model.layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=reentrant)
        return cast("nn.Module", model)

    once = plain(Recipe(family("llama"), losses.supervised), "plain")
    again = plain(Recipe(building, losses.supervised), "plain")
    assert again.keys() == once.keys()
    for key, tensor in again.items():
        torch.testing.assert_close(tensor, once[key], rtol=RELATIVE, atol=ABSOLUTE)


def test_a_function_of_ones_own_asks_for_fp32_in_backward_and_gets_fp64() -> None:
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Tensor) -> Tensor:
            del context
            return x / 2

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            del context
            return gradient.float() / 2

    x = torch.rand(4, dtype=torch.float64, requires_grad=True)
    with exact():
        halved: Tensor = Halved.apply(x)  # type: ignore[no-untyped-call]
        (halved / 3).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 6), rtol=RELATIVE, atol=0)


def test_a_parameter_has_its_weights_by_name_whatever_else_there_is() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.layer = nn.Linear(3, 3), nn.Linear(4, 4)

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

    one, other = (
        Recipe(build, losses.supervised).build(CASE, torch.device("cpu"), torch.float64)
        for build in (lambda _: Other(), lambda _: Alone())
    )
    assert torch.equal(one.layer.weight, other.layer.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("layer", "times"), [(partial(nn.Linear, 3, 3), 3), (partial(nn.LayerNorm, 3), 2)]
)
def test_a_vector_is_the_same_in_fp64_and_a_model_that_draws_none_is_constructed_once(
    layer: Callable[[], nn.Module], times: int
) -> None:
    constructed: list[nn.Module] = []

    def build(_case: Case) -> nn.Module:
        constructed.append(layer())
        return constructed[-1]

    recipe, case = Recipe(build, losses.supervised), replace(CASE, dtype="fp32")
    wide, single = (
        recipe.build(case, torch.device("cpu"), dtype) for dtype in (torch.float64, torch.float32)
    )
    assert len(constructed) == times
    for name, vector in single.named_parameters():
        assert torch.equal(dict(wide.named_parameters())[name], vector.double())
