"""Which parameters of a rank have learned in a run, whatever was emitted of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

# So many of those that were not emitted are named.
MOST_NAMES = 3

Numbers = npt.NDArray[np.float64]


class Learning:
    """From now on it knows every module of this process that is given a parameter.

    A parameter has learned if its `.grad` says so at the end of a run, or if a gradient reached
    it meanwhile: a step may clear them at its end, or ask for them with `autograd.grad`.
    """

    def __init__(self) -> None:
        self._kept = WeakSet[nn.Module]()
        # Modules of this run: its candidate may let go of them before they are looked at.
        self._made: dict[int, nn.Module] = {}
        # Gradients of models that a candidate kept from an earlier run.
        self._before: dict[int, Tensor] = {}
        # For each gradient that reached a parameter in this run, whether it was not zero.
        self._reached = WeakIdKeyDictionary()
        self._is_on = False
        register_module_parameter_registration_hook(self._note)

    def _note(self, module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        self._made[id(module)] = module
        if parameter is not None:
            self._listen(parameter)

    def _listen(self, parameter: nn.Parameter) -> None:
        if not parameter.requires_grad or parameter in self._reached:
            return
        reached: list[Tensor] = []
        self._reached[parameter] = reached

        def note(gradient: Tensor) -> None:
            if self._is_on:
                # What it comes to is asked at the end: until then no device is waited for.
                reached.append(_held(gradient).any())

        parameter.register_hook(note)

    def begin(self) -> None:
        """A run begins: what is there now it has not learned."""
        self._let_go()
        parameters = {id(parameter): parameter for parameter in self._parameters()}
        self._before = {
            number: _gradient(parameter).clone()
            for number, parameter in parameters.items()
            if parameter.grad is not None
        }
        for parameter in parameters.values():
            self._listen(parameter)
        for reached in self._reached.values():
            reached.clear()
        self._is_on = True

    def unemitted(self, emitted: Mapping[str, Tensor]) -> str:
        """What is missing of the gradients that a run emitted, by key.

        What is emitted twice is counted once, such as that of a tied weight under both its names;
        and so are parameters that have the same gradient, such as those of a copy in fp32.
        """
        self._is_on = False
        learned = {id(each): each for each in self._parameters() if self._has_learned(each)}
        left = {n: _gradient(each) for n, each in learned.items() if each.grad is not None}
        shown = {number: gradient for number, gradient in left.items() if gradient.any()}
        # The numbers of the others are lost.
        cleared = [each.numel() for number, each in learned.items() if number not in shown]
        mine, theirs = _distinct(shown.values()), _distinct(emitted.values())
        elements, told = sum(cleared) + sum(map(len, mine)), sum(map(len, theirs))
        is_each = not Counter([*cleared, *map(len, mine)]) - Counter(map(len, theirs))
        # In a shorter format numbers are the same by chance.
        formats = {each.dtype for each in (*shown.values(), *emitted.values())}
        if not is_each and formats == {torch.float64}:
            elements, told = sum(cleared) + _fresh(mine), _fresh(theirs)
        missing = self._names(learned, emitted) if elements > told else []
        self._let_go()
        if elements <= told:
            return ""
        some = f", such as {', '.join(missing[:MOST_NAMES])}" if missing else ""
        return (
            f"parameters with {elements} elements got a gradient that is not zero{some}, and "
            f"gradients of {told} elements were emitted: emit grad.<name> for each of them"
        )

    def _names(self, learned: Mapping[int, Tensor], emitted: Mapping[str, Tensor]) -> list[str]:
        names: dict[int, str] = {}
        for module in self._modules():
            for name, parameter in module.named_parameters():
                # As the outermost module calls it.
                names[id(parameter)] = max(names.get(id(parameter), ""), name, key=len)
        known = [names[each] for each in learned]
        missing = [name for name in known if not any(key.endswith(f".{name}") for key in emitted)]
        # A short name may be the end of many keys.
        sizes = {tensor.numel() for tensor in emitted.values()}
        others = [names[number] for number, each in learned.items() if each.numel() not in sizes]
        return missing or others

    def _modules(self) -> Iterator[nn.Module]:
        yield from self._made.values()
        yield from (module for module in self._kept if id(module) not in self._made)

    def _parameters(self) -> Iterator[nn.Parameter]:
        return (each for module in self._modules() for each in module.parameters(recurse=False))

    def _has_learned(self, parameter: nn.Parameter) -> bool:
        if any(self._reached.get(parameter, ())):
            return True
        if parameter.grad is None:
            return False
        gradient, before = _gradient(parameter), self._before.get(id(parameter))
        as_before = (
            before is not None and before.shape == gradient.shape and gradient.equal(before)
        )
        return not as_before and bool(gradient.any())

    def _let_go(self) -> None:
        self._kept.update(self._made.values())
        self._made.clear()
        self._before.clear()


def _distinct(gradients: Iterable[Tensor]) -> list[Numbers]:
    """Their numbers, the fewest first; of several with the same numbers, those of one."""
    numbers = (gradient.detach().double().cpu().numpy().ravel() for gradient in gradients)
    found = {(len(each), blake2b(each.tobytes()).digest()): each for each in numbers}
    return sorted(found.values(), key=len)


def _fresh(gradients: Sequence[Numbers]) -> int:
    """How many numbers there are, but for those that a smaller gradient has as well.

    What is fused of others, or transposed, stands for no further one.
    """
    every = np.concatenate([np.empty(0), *gradients])
    owner = np.repeat(np.arange(len(gradients)), [len(each) for each in gradients])
    _, first, group = np.unique(every, return_index=True, return_inverse=True)
    # Zeros are many, and say nothing of whose they are.
    return int(((owner == owner[first][group]) | (every == 0)).sum())


def _gradient(parameter: nn.Parameter) -> Tensor:
    return _held(parameter.grad)


def _held(gradient: Any) -> Tensor:
    """What this rank holds of it; to ask for the whole, where it is spread, would send."""
    held: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return held.to_dense() if held.is_sparse else held
