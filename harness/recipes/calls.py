"""Changes what a model of a recipe is called with, and the logits that it answers with.

A loss may call a part of the model, such as its policy or its reference. Some calls leave no
gradient, such as those of a teacher: what they are given and answer can be changed alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harness.case import Case
from harness.recipes.attention_mask import Seen
from harness.recipes.batch import Batch

# Returns logits in place of those of the model on a batch.
Answered = Callable[[Tensor, Batch, Case], Tensor]

# The columns of a changed batch that a model is given in place of those that the loss sees.
MODEL_IDS = "model_ids"
MODEL_MASK = "model_mask"
MODEL_POSITIONS = "model_positions"
GIVEN: Mapping[str, str] = {
    MODEL_IDS: "input_ids",
    MODEL_MASK: "attention_mask",
    MODEL_POSITIONS: "position_ids",
}


def as_they_are(logits: Tensor, batch: Batch, case: Case) -> Tensor:
    """Hand the loss the model's logits."""
    del batch, case
    return logits


@dataclass(slots=True)
class Calls:
    """The calls of a model, or of parts of it, with one batch."""

    model: nn.Module
    batch: Batch
    case: Case
    logits: Answered = as_they_are
    # Whether only calls that leave no gradient are changed.
    without_gradient: bool = False
    # How many calls are under way, one inside the other; the outermost decides for all.
    _depth: int = 0
    _is_changed: bool = False
    # Whether any call has been changed.
    are_met: bool = False

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Change what calls are given, and what they answer."""
        changes = not GIVEN.keys().isdisjoint(self.batch) or self.logits is not as_they_are
        with ExitStack() as hooks:
            for module in self.model.modules() if changes or self.without_gradient else ():
                enter = module.register_forward_pre_hook(self._enter, with_kwargs=True)
                hooks.callback(enter.remove)
                hooks.callback(module.register_forward_hook(self._leave).remove)
            yield

    def limited(self, seen: Seen | None) -> Seen | None:
        """Return what changes masks in those calls alone that are changed."""
        if seen is None or not self.without_gradient:
            return seen

        def seen_in_some(mask_B1QK: Tensor, batch: Batch, window: int | None) -> Tensor:
            return seen(mask_B1QK, batch, window) if self._is_changed else mask_B1QK

        return seen_in_some

    def _enter(self, module: nn.Module, given: Any, named: dict[str, Any]) -> Any:
        if not self._depth:
            self._is_changed = not self.without_gradient or _leaves_no_gradient(module)
            self.are_met |= self._is_changed
        self._depth += 1
        if not self._is_changed:
            return None
        own = [self._in_place_of(x) for x in (*given, *named.values())]
        return tuple(own[: len(given)]), dict(zip(named, own[len(given) :], strict=True))

    def _in_place_of(self, x: object) -> object:
        for own, name in GIVEN.items():
            if own in self.batch and x is self.batch[name]:
                return self.batch[own]
        return x

    def _leave(self, module: nn.Module, _given: Any, out: Any) -> Any:
        self._depth -= 1
        if self._depth or not self._is_changed:
            return out
        if isinstance(getattr(out, "logits", None), Tensor):
            out.logits = self.logits(out.logits, self.batch, self.case)
            return out
        # A part returns logits if it has a number for each id of the vocabulary.
        if isinstance(out, Tensor) and (
            module is self.model or out.shape[-1:] == (self.case.vocab,)
        ):
            return self.logits(out, self.batch, self.case)
        return out


def _leaves_no_gradient(module: nn.Module) -> bool:
    return not torch.is_grad_enabled() or not any(p.requires_grad for p in module.parameters())
