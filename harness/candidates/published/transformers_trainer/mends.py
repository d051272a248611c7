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
from harness.candidates.published.wiring.decoder import seen_in_rows
from harness.candidates.published.wiring.rows import IGNORED
from harness.candidates.published.wiring.whole import attend_balanced

# The compute_loss of a trainer.
Compute = Callable[..., Tensor]
# change(trainer, its inputs, its compute_loss) -> the loss.
Change = Callable[[Any, dict[str, Tensor], Compute], Any]


@contextmanager
def masked() -> Iterator[None]:
    """While this lasts, keys of all ranks are gathered, and the batch's mask is applied."""
    from transformers import Trainer
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    prepare, sdpa = Trainer._prepare_context_parallel_inputs, ALL_ATTENTION_FUNCTIONS["sdpa"]
    current: dict[str, Any] = {}

    def prepare_and_keep(self: Any, model: Any, inputs: dict[str, Tensor]) -> Any:
        shares = self.accelerator.parallelism_config
        current.clear()
        if shares is not None and shares.cp_enabled:
            mesh = self.accelerator.torch_device_mesh["cp"]
            positions = torch.arange(inputs["input_ids"].shape[1])[None]
            current.update(mesh=mesh, seen_BSS=seen_in_rows(rows_of(inputs), positions, None))
        return prepare(self, model, inputs)

    def attend(layer: Any, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not current:
            return sdpa(layer, q, k, v, *args, **kwargs)
        return attend_balanced(q, k, v, current["seen_BSS"], current["mesh"]), None

    with ExitStack() as patches:
        patches.enter_context(
            patch.object(Trainer, "_prepare_context_parallel_inputs", prepare_and_keep)
        )
        patches.enter_context(patch.dict(ALL_ATTENTION_FUNCTIONS._global_mapping, sdpa=attend))
        yield


def rows_of(inputs: dict[str, Tensor]) -> Tensor:
    """Return the row number of each token; padding of a table has a negative one."""
    if "attention_mask" in inputs:
        return inputs["attention_mask"] - 1
    return (inputs["position_ids"] == 0).cumsum(1)


def computing(change: Change, trainer: Any = None) -> AbstractContextManager[Any]:
    """While this lasts, `change` computes the loss; it gets the released `compute_loss`."""
    from transformers import Trainer

    owner = trainer or Trainer
    released: Any = owner.compute_loss

    def compute(self: Any, model: Any, inputs: dict[str, Tensor], **kwargs: Any) -> Any:
        return change(self, inputs, partial(released, self, model, inputs, **kwargs))

    return patch.object(owner, "compute_loss", compute)


def weighed() -> AbstractContextManager[Any]:
    """While this lasts, a rank's mean weighs as much as the rank has targets."""

    def change(self: Any, inputs: dict[str, Tensor], compute: Compute) -> Tensor:
        if "shift_labels" not in inputs:
            return compute()
        own_count = (inputs["shift_labels"] != IGNORED).sum()
        mesh = self.accelerator.torch_device_mesh["cp"]
        dist.all_reduce(count := own_count.clone(), group=mesh.get_group())
        loss: Tensor = compute().nan_to_num() * own_count * mesh.size() / count
        return loss

    return computing(change)


def shifted_for_users() -> AbstractContextManager[Any]:
    """While this lasts, a user's own loss function gets labels shifted before the cut."""
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
    """While this lasts, the smoother shifts, or gets labels that were shifted before the cut."""

    def change(self: Any, inputs: dict[str, Tensor], compute: Compute) -> Tensor:
        released, shifted = self.label_smoother, inputs.get("shift_labels")

        def smooth(outputs: Any, labels: Tensor, **options: Any) -> Tensor:
            options["shift_labels"] = shifted is None
            loss: Tensor = released(outputs, labels if shifted is None else shifted, **options)
            return loss

        with patch.object(self, "label_smoother", smooth):
            return compute()

    return computing(change, trainer)


MENDS: dict[str, Mend] = {
    "left-padding-attended": masked,
    "packed-rows-attended": masked,
    "one-token-shards-not-causal": masked,
    "mean-of-rank-means": weighed,
    "labels-cut-unshifted": shifted_for_users,
    "smoothing-not-shifted": smoothed_shifted,
}
