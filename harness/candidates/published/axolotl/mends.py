"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch import distributed as dist

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.rows import IGNORED


def averaged_over_shards() -> AbstractContextManager[Any]:
    """While this lasts, a loss of labels is divided by those of all shards of a sequence."""
    from axolotl.monkeypatch.ring_attn import get_ring_attn_group
    from transformers.loss.loss_utils import LOSS_MAPPING

    name = "ForTokenClassification"
    released = LOSS_MAPPING[name]

    def loss(logits: Tensor, labels: Tensor, config: Any, **named: Any) -> Tensor:
        group = get_ring_attn_group()
        if group is not None:
            dist.all_reduce(count := (labels != IGNORED).sum(), group=group)
            # FSDP averages over the shards as well.
            named["num_items_in_batch"] = count / group.size()
        found: Tensor = released(logits, labels, config, **named)
        return found

    return patch.dict(LOSS_MAPPING, {name: loss})


def added_up_by_all() -> AbstractContextManager[Any]:
    """While this lasts, logits that are gathered have the gradients of all ranks."""
    from ringmaster.cp_collectives import SeqGatherCP

    released: Any = SeqGatherCP.backward

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # All ranks have the whole loss, and FSDP averages what each has of it.
        own, _ = released(ctx, gradient)
        return own * ctx.world, None

    return patch.object(SeqGatherCP, "backward", staticmethod(backward))


def the_same_rows() -> AbstractContextManager[Any]:
    """While this lasts, all ranks of a sequence train on the answers of the first in one order."""
    from axolotl.monkeypatch.ring_attn import get_ring_attn_group
    from ringmaster.batch import broadcast_batch
    from trl.trainer import grpo_trainer

    released = grpo_trainer.shuffle_sequence_dict

    def shuffle(batch: dict[str, Any]) -> dict[str, Any]:
        shuffled: dict[str, Any] = released(batch)
        broadcast_batch(shuffled, get_ring_attn_group())
        return shuffled

    return patch.object(grpo_trainer, "shuffle_sequence_dict", shuffle)


MENDS: dict[str, Mend] = {
    "process-reward-mean-of-shards": averaged_over_shards,
    "gathered-logits-cut-back": added_up_by_all,
    "answers-of-each-rank": the_same_rows,
}
