"""The release without each of its listed bugs.

Legend: B rows, S tokens of all ranks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.decoder import IGNORED, seen_in_rows
from harness.candidates.published.wiring.whole import attend_balanced

# compute_loss of a trainer.
Compute = Callable[..., Tensor]
# change(trainer, its inputs, its compute_loss) -> the loss.
Change = Callable[[Any, dict[str, Tensor], Compute], Any]


@contextmanager
def masked() -> Iterator[None]:
    """Keys of all ranks are gathered, and the mask of the whole batch is kept."""
    from transformers import Trainer
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    prepare, sdpa = Trainer._prepare_context_parallel_inputs, ALL_ATTENTION_FUNCTIONS["sdpa"]
    now: dict[str, Any] = {}

    def look(self: Any, model: Any, inputs: dict[str, Tensor]) -> Any:
        shares = self.accelerator.parallelism_config
        now.clear()
        if shares is not None and shares.cp_enabled:
            mesh = self.accelerator.torch_device_mesh["cp"]
            places = torch.arange(inputs["input_ids"].shape[1])[None]
            now.update(mesh=mesh, seen_BSS=seen_in_rows(rows_of(inputs), places, None))
        return prepare(self, model, inputs)

    def attend(layer: Any, q: Tensor, k: Tensor, v: Tensor, *given: Any, **named: Any) -> Any:
        if not now:
            return sdpa(layer, q, k, v, *given, **named)
        return attend_balanced(q, k, v, now["seen_BSS"], now["mesh"]), None

    with ExitStack() as patches:
        patches.enter_context(patch.object(Trainer, "_prepare_context_parallel_inputs", look))
        patches.enter_context(patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, sdpa=attend))
        yield


def rows_of(inputs: dict[str, Tensor]) -> Tensor:
    """The row of each token, by number; padding of a table has none."""
    if "attention_mask" in inputs:
        return inputs["attention_mask"] - 1
    return (inputs["position_ids"] == 0).cumsum(1)


def computing(change: Change, trainer: Any = None) -> AbstractContextManager[Any]:
    """While it lasts, `change` computes the loss, and is given the released compute_loss."""
    from transformers import Trainer

    owner = trainer or Trainer
    released: Any = owner.compute_loss

    def compute(self: Any, model: Any, inputs: dict[str, Tensor], **named: Any) -> Any:
        return change(self, inputs, partial(released, self, model, inputs, **named))

    return patch.object(owner, "compute_loss", compute)


def weighed() -> AbstractContextManager[Any]:
    """A rank's mean weighs as many targets as the rank has."""

    def change(self: Any, inputs: dict[str, Tensor], compute: Compute) -> Tensor:
        if "shift_labels" not in inputs:
            return compute()
        own = (inputs["shift_labels"] != IGNORED).sum()
        mesh = self.accelerator.torch_device_mesh["cp"]
        dist.all_reduce(whole := own.clone(), group=mesh.get_group())
        weighed: Tensor = compute().nan_to_num() * own * mesh.size() / whole
        return weighed

    return computing(change)


def given_shifted() -> AbstractContextManager[Any]:
    """A user's own loss function gets labels that were shifted before the cut."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    def change(self: Any, inputs: dict[str, Tensor], compute: Compute) -> Tensor:
        if "shift_labels" not in inputs:
            return compute()

        def causal(outputs: Any, _: Tensor, num_items_in_batch: Tensor) -> Any:
            logits, labels = outputs.logits, inputs["shift_labels"]
            vocab, count = logits.shape[-1], num_items_in_batch
            return ForCausalLMLoss(logits, labels, vocab, count, shift_labels=labels)

        with patch.object(self, "compute_loss_func", causal):
            return compute()

    return computing(change)


def smoothed_shifted(trainer: Any = None) -> AbstractContextManager[Any]:
    """The smoother shifts, or gets labels that were shifted before they were cut."""

    def change(self: Any, inputs: dict[str, Tensor], compute: Compute) -> Tensor:
        released, shifted = self.label_smoother, inputs.get("shift_labels")

        def smooth(outputs: Any, labels: Tensor, **given: Any) -> Tensor:
            given["shift_labels"] = shifted is None
            loss: Tensor = released(outputs, labels if shifted is None else shifted, **given)
            return loss

        with patch.object(self, "label_smoother", smooth):
            return compute()

    return computing(change, trainer)


MENDS: dict[str, Mend] = {
    "left-padding-attended": masked,
    "packed-rows-attended": masked,
    "one-token-shards-not-causal": masked,
    "mean-of-rank-means": weighed,
    "labels-cut-unshifted": given_shifted,
    "smoothing-not-shifted": smoothed_shifted,
}
