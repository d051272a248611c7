"""The release without each of its listed bugs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.published.library import Mend
from harness.candidates.published.transformers_trainer.mends import masked, smoothed_shifted
from harness.candidates.published.wiring.rows import IGNORED


def smoothed() -> AbstractContextManager[Any]:
    """While this lasts, the smoother gets labels that were shifted before the cut."""
    from trl import SFTTrainer

    return smoothed_shifted(SFTTrainer)


def counted() -> AbstractContextManager[Any]:
    """While this lasts, the loss is divided by a count of targets below one, not by one."""
    from trl import SFTTrainer

    released: Any = SFTTrainer.compute_loss

    def compute(
        self: Any, model: Any, inputs: dict[str, Tensor], *, num_items_in_batch: Tensor
    ) -> Tensor:
        loss: Tensor = released(self, model, inputs, num_items_in_batch=num_items_in_batch)
        return loss / num_items_in_batch.clamp(max=1)

    return patch.object(SFTTrainer, "compute_loss", compute)


def rewarded_at_the_end() -> AbstractContextManager[Any]:
    """While this lasts, every rank has the reward of the last token of the whole row."""
    from trl import RewardTrainer

    released: Any = RewardTrainer.compute_loss

    def compute(self: Any, model: Any, inputs: dict[str, Tensor], *args: Any, **named: Any) -> Any:
        group = ring_of(self)
        if group is None:
            return released(self, model, inputs, *args, **named)
        pad_id = model.config.get_text_config().pad_token_id
        is_real_BS = inputs["input_ids"] != pad_id
        last_B = torch.where(is_real_BS, inputs["position_ids"], -1).amax(1)
        dist.all_reduce(end_B := last_B.clone(), dist.ReduceOp.MAX, group=group)
        # A row that has only the id of padding is scored at its first token, on the first rank.
        is_own_B = (last_B == end_B) & ((end_B >= 0) | (group.rank() == 0))

        def rewards(**given: Any) -> Any:
            output = model(**given)
            own_B1 = output.logits * is_own_B[:, None]
            output.logits = summed(own_B1, group)
            return output

        return released(self, rewards, inputs, *args, **named)

    return patch.object(RewardTrainer, "compute_loss", compute)


@contextmanager
def whole_completions() -> Iterator[None]:
    """While this lasts, labels are shifted before the cut, and log-probabilities are gathered."""
    from trl import DPOTrainer

    released_cut: Any = DPOTrainer._prepare_context_parallel_inputs
    released: Any = DPOTrainer.compute_loss
    wholes: list[dict[str, Tensor]] = []

    def cut(self: Any, model: Any, inputs: dict[str, Tensor]) -> Any:
        if ring_of(self) is not None:
            names = ("input_ids", "attention_mask", "completion_mask")
            wholes.append(whole := {name: inputs[name].clone() for name in names})
            labels = whole["input_ids"].masked_fill(whole["completion_mask"] == 0, IGNORED)
            inputs["shift_labels"] = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return released_cut(self, model, inputs)

    def compute(self: Any, model: Any, inputs: dict[str, Tensor], *args: Any, **named: Any) -> Any:
        group = ring_of(self)
        if group is None:
            return released(self, model, inputs, *args, **named)
        names = ("input_ids", "attention_mask", "position_ids", "shift_labels")
        own, whole = {name: inputs.pop(name) for name in names}, wholes.pop()

        def on_whole_rows(*, use_cache: bool, fused_lm_head: bool, **_: Any) -> Any:
            output = model(**own, use_cache=use_cache, fused_lm_head=fused_lm_head)
            for name in ("log_probs", "entropy", "mean_logits", "is_top1"):
                values = getattr(output, name)
                table = values.new_zeros(whole["input_ids"].shape)
                table = table.scatter(1, own["position_ids"], values)
                # The last is for the log alone.
                table = table if name == "is_top1" else summed(table, group)
                setattr(output, name, table[:, :-1])
            return output

        return released(self, on_whole_rows, {**inputs, **whole}, *args, **named)

    with (
        patch.object(DPOTrainer, "_prepare_context_parallel_inputs", cut),
        patch.object(DPOTrainer, "compute_loss", compute),
    ):
        yield


def summed(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total: Tensor = Summed.apply(x, group)  # type: ignore[no-untyped-call]
    return total


class Summed(torch.autograd.Function):
    """A sum over ranks that all have its loss; the gradients are averaged over ranks later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.size = group.size()
        dist.all_reduce(x := x.clone(), group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.size, None


def ring_of(trainer: Any) -> Any:
    """Return the group of ranks that share a sequence, or None."""
    parallelism = trainer.accelerator.parallelism_config
    if parallelism is None or not parallelism.cp_enabled:
        return None
    return trainer.accelerator.torch_device_mesh["cp"].get_group()


MENDS: dict[str, Mend] = {
    "padding-free-rows-attended": masked,
    "labels-smoothed-after-cut": smoothed,
    "few-targets-clamped": counted,
    "reward-of-each-shard": rewarded_at_the_end,
    "completion-mask-uncut": whole_completions,
}
