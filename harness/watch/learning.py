"""Find the parameters of a rank that have learned in a run, whether they were emitted or not."""

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

# The most parameters without an emitted gradient that are named.
MOST_NAMES = 3

Numbers = npt.NDArray[np.float64]


class Learning:
    """Knows, from its construction on, every module of this process that gets a parameter.

    A parameter has learned if its `.grad` is new and not zero at the end of a run, or if such a
    gradient reached it meanwhile: a step may clear `.grad`, or use `autograd.grad` instead.
    """

    def __init__(self) -> None:
        self._earlier = WeakSet[nn.Module]()
        # Modules of this run, held because the candidate may drop them before its end.
        self._made: dict[int, nn.Module] = {}
        # The gradients at the beginning of the run, of models that the candidate has kept.
        self._before: dict[int, Tensor] = {}
        # For each gradient that reached a parameter in this run, whether it was not zero.
        self._reached = WeakIdKeyDictionary()
        self._is_on = False
        register_module_parameter_registration_hook(self._note_parameter)

    def _note_parameter(
        self, module: nn.Module, _name: str, parameter: nn.Parameter | None
    ) -> None:
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
                # Keep the tensor: reading its value now would wait for the device.
                reached.append(_local(gradient).any())

        parameter.register_hook(note)

    def begin(self) -> None:
        """Begin a run. Gradients that exist now do not count."""
        self._end_run()
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
        """End a run; return which gradients it has not emitted, if any; `emitted` is by key.

        A gradient that is emitted twice counts once, such as that of a tied weight under both its
        names. Parameters with the same gradient also count once, such as a copy in fp32.
        """
        self._is_on = False
        learned = {id(each): each for each in self._parameters() if self._has_learned(each)}
        present = {n: _gradient(each) for n, each in learned.items() if each.grad is not None}
        shown = {number: gradient for number, gradient in present.items() if gradient.any()}
        # The values of the other gradients are lost, and only their sizes are known.
        cleared = [each.numel() for number, each in learned.items() if number not in shown]
        expected, found = _distinct(shown.values()), _distinct(emitted.values())
        elements, given = sum(cleared) + sum(map(len, expected)), sum(map(len, found))
        has_all_sizes = not Counter([*cleared, *map(len, expected)]) - Counter(map(len, found))
        # In formats shorter than fp64, equal numbers may be equal by chance.
        formats = {each.dtype for each in (*shown.values(), *emitted.values())}
        if not has_all_sizes and formats == {torch.float64}:
            elements, given = sum(cleared) + _count_new(expected), _count_new(found)
        missing = self._missing_names(learned, emitted) if elements > given else []
        self._end_run()
        if elements <= given:
            return ""
        some = f", such as {', '.join(missing[:MOST_NAMES])}" if missing else ""
        return (
            f"parameters with {elements} elements got a gradient that is not zero{some}, and "
            f"gradients of {given} elements were emitted: emit grad.<name> for each of them"
        )

    def _missing_names(
        self, learned: Mapping[int, Tensor], emitted: Mapping[str, Tensor]
    ) -> list[str]:
        names: dict[int, str] = {}
        for module in self._modules():
            for name, parameter in module.named_parameters():
                # The outermost module has the longest name.
                names[id(parameter)] = max(names.get(id(parameter), ""), name, key=len)
        known = [names[each] for each in learned]
        missing = [name for name in known if not any(key.endswith(f".{name}") for key in emitted)]
        # A short name may be the end of many keys; then sizes decide.
        sizes = {tensor.numel() for tensor in emitted.values()}
        others = [names[number] for number, each in learned.items() if each.numel() not in sizes]
        return missing or others

    def _modules(self) -> Iterator[nn.Module]:
        yield from self._made.values()
        yield from (module for module in self._earlier if id(module) not in self._made)

    def _parameters(self) -> Iterator[nn.Parameter]:
        return (each for module in self._modules() for each in module.parameters(recurse=False))

    def _has_learned(self, parameter: nn.Parameter) -> bool:
        if any(self._reached.get(parameter, ())):
            return True
        if parameter.grad is None:
            return False
        gradient, before = _gradient(parameter), self._before.get(id(parameter))
        is_unchanged = (
            before is not None and before.shape == gradient.shape and gradient.equal(before)
        )
        return not is_unchanged and bool(gradient.any())

    def _end_run(self) -> None:
        """Hold the modules of this run only as long as the candidate does."""
        self._earlier.update(self._made.values())
        self._made.clear()
        self._before.clear()


def _distinct(gradients: Iterable[Tensor]) -> list[Numbers]:
    """Return the values of each gradient, shortest first, without repetitions."""
    numbers = (gradient.detach().double().cpu().numpy().ravel() for gradient in gradients)
    found = {(len(each), blake2b(each.tobytes()).digest()): each for each in numbers}
    return sorted(found.values(), key=len)


def _count_new(gradients: Sequence[Numbers]) -> int:
    """Count the numbers that no smaller gradient has as well.

    A gradient that is fused from others, or transposed, adds nothing new.
    """
    every = np.concatenate([np.empty(0), *gradients])
    owner = np.repeat(np.arange(len(gradients)), [len(each) for each in gradients])
    _, first, group = np.unique(every, return_index=True, return_inverse=True)
    # Zeros are frequent in every gradient, so they always count.
    return int(((owner == owner[first][group]) | (every == 0)).sum())


def _gradient(parameter: nn.Parameter) -> Tensor:
    return _local(parameter.grad)


def _local(gradient: Any) -> Tensor:
    """Return this rank's part of a gradient: gathering a distributed one would communicate."""
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local.to_dense() if local.is_sparse else local
