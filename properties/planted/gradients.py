"""Steps whose loss is right and whose gradients are wrong in one simple way."""

import itertools
from collections.abc import Callable

from torch import Tensor

from harness.candidates.own.native import LocalDialect
from harness.candidates.protocol import Rank
from harness.reference import Decoder

# wrong(name of the parameter, its gradient, sp) -> the gradient that the optimizer sees.
Wrong = Callable[[str, Tensor, int], Tensor]


class WrongAtTheEnd(LocalDialect):
    """The native step, which changes each gradient after the reduction."""

    def __init__(self, wrong: Wrong) -> None:
        self.wrong = wrong

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad = self.wrong(name, parameter.grad, rank.sp.size())


def in_the_last_layer(wrong: Wrong) -> Wrong:
    """Restrict a change to layer 0, the last that backward reaches."""
    return lambda name, grad, sp: wrong(name, grad, sp) if name.startswith("layers.0.") else grad


def without_last_slice(_name: str, grad: Tensor, _sp: int) -> Tensor:
    kept = grad.clone()
    kept[-1] = 0
    return kept


ZERO = WrongAtTheEnd(lambda _name, grad, _sp: grad * 0)
DOUBLED = WrongAtTheEnd(lambda _name, grad, _sp: grad * 2)
NEGATED = WrongAtTheEnd(lambda _name, grad, _sp: -grad)
DIVIDED_BY_SP = WrongAtTheEnd(lambda _name, grad, sp: grad / sp)
A_LAYER_MISSING = WrongAtTheEnd(in_the_last_layer(lambda _name, grad, _sp: grad * 0))
LAST_SLICE_ZEROED = WrongAtTheEnd(without_last_slice)


def a_hundredth_more(_name: str, grad: Tensor, _sp: int) -> Tensor:
    return grad * 1.01


def every_third_time_more(name: str, grad: Tensor, _sp: int) -> Tensor:
    turn = next(turns.setdefault(name, itertools.count(1)))
    return grad * 1.01 if turn % 3 else grad * 0.99


turns: dict[str, "itertools.count[int]"] = {}
A_HUNDREDTH_MORE = WrongAtTheEnd(a_hundredth_more)
EVERY_THIRD_TIME_MORE = WrongAtTheEnd(every_third_time_more)
