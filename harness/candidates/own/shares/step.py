"""A right step on shares: each rank computes the part of the loss that its own tokens make.

Trainers work like this. Read it from top to bottom; `losses` has what each loss comes to.

1. Rows are padded until ranks share their columns evenly. A rank takes its columns in `order`.
2. In attention ranks exchange columns for heads, and layers with a state compute whole rows, both
   as in `harness.recipes.ulysses`.
3. Labels, and what belongs to a label, are shifted before the cut.
4. What a loss counts or averages is summed over ranks. Gradients are summed when all
   micro-batches are done.

Each method is one decision of such a step. A mutant, or a benign variant, replaces one of them.

Legend: B rows, S columns, L columns of this rank, V vocabulary, D width of the model.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from harness.against import RECIPE_LIMITS
from harness.recipes import Recipe, Step, losses, ulysses
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.columns import Column
from harness.recipes.families import family
from harness.recipes.result import parted


class Sum(torch.autograd.Function):
    """A sum over ranks that all use in the same way; each keeps its own share of the gradient."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: Any) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Once(torch.autograd.Function):
    """A loss that all ranks of a sequence compute: each trains on all of it and logs its share."""

    @staticmethod
    def forward(_ctx: Any, loss: Tensor, ranks: int) -> Tensor:
        return loss / ranks

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def summed(x: Tensor, *groups: Any) -> Tensor:
    total = x.detach().clone()
    for group in groups:
        dist.all_reduce(total, group=group)
    return total


class Supervised(Step):
    """Cross entropy. Other losses replace `share`, and what plain training is of them."""

    family = "llama"
    head = "CausalLM"
    # The name of the loss, its plain training, and the columns of both.
    loss = "supervised"
    plain: Any = staticmethod(losses.supervised)
    columns: ClassVar[Mapping[str, Column]] = {}
    # Values of fields of a case beside those that a recipe supports.
    only = ""
    # What the model is asked for beside logits.
    asked: ClassVar[Mapping[str, Any]] = {}

    # The ranks that have the same columns of other replicas, and those that share a sequence.
    dp: dist.ProcessGroup
    sp: dist.ProcessGroup
    # All micro-batches of this rank's replica, and the one of now.
    parts: Sequence[Batch]
    batch: Batch

    def __init__(self) -> None:
        limits = f"{RECIPE_LIMITS} checkpoint=0 {self.only}".strip()
        super().__init__(
            self._take_copy, self.recipe_of(), micro_batches=True, limits=limits, supports=None
        )

    @classmethod
    def trains(cls) -> str:
        """Return the name of the right step that trains the same."""
        return f"{cls.family.replace('-', '_')}__{cls.loss}"

    def recipe_of(self) -> Recipe:
        return Recipe(family(self.family, head=self.head), self.plain, self.columns)

    def _take_copy(self, model: nn.Module, parts: Sequence[Batch], mesh: Any) -> Any:
        """Take the step on a copy, so that nothing of it is left on the candidate."""
        return copy(self).train(model, parts, mesh)

    def train(self, model: nn.Module, parts: Sequence[Batch], mesh: Any) -> Any:
        """Train on all micro-batches of this rank's replica; return the loss and the metrics."""
        self.dp, self.sp = mesh["dp"].get_group(), mesh["sp"].get_group()
        self.parts = parts
        totals: dict[str, Tensor] = {}
        for part in parts:
            self.look_at(part)
            self.forward(model)
            share, metrics = parted(self.share())
            self.backward(share)
            for name, x in {"": share, **metrics}.items():
                totals[name] = totals.get(name, 0) + x.detach()
        self.reduce(model)
        loss = self.reported(totals.pop(""))
        metrics = self.reported_metrics(totals)
        return (loss, metrics) if metrics else loss

    def look_at(self, batch: Batch) -> None:
        """Cut the labels of a micro-batch."""
        self.batch = batch
        self.labels_BL = self.cut_labels()
        self.is_target_BL = self.labels_BL != IGNORED

    # Columns of this rank

    def pieces(self) -> int:
        """Into how many equal pieces the columns can be cut."""
        return self.sp.size()

    def order(self, columns: int) -> Tensor:
        """The columns of rank 0, then those of rank 1, and so on."""
        return torch.arange(columns, device=self.batch["labels"].device)

    def even(self, x_BS: Tensor, value: int = 0) -> Tensor:
        more = -x_BS.shape[1] % self.pieces()
        return ulysses.padded(x_BS, 1, x_BS.shape[1] + more, value)

    def own(self, x_BS: Tensor) -> Tensor:
        """Return this rank's columns of what is even."""
        return ulysses.cut(x_BS[:, self.order(x_BS.shape[1])], self.sp)

    def cut(self, x_BS: Tensor, value: int = 0) -> Tensor:
        return self.own(self.even(x_BS, value))

    def next(self, x_BS: Tensor, value: int = 0) -> Tensor:
        """Return the column behind each of this rank's columns."""
        return self.cut(F.pad(x_BS[:, 1:], (0, 1), value=value), value)

    def whole(self, x_BL: Tensor) -> Tensor:
        """Return the columns of all ranks, of which each rank makes something else."""
        x_BS = ulysses.states(x_BL, self.sp)
        return x_BS[:, self.order(x_BS.shape[1]).argsort()]

    def cut_labels(self) -> Tensor:
        """Return the label of each of this rank's tokens, which is the next token."""
        return self.next(self.batch["labels"], IGNORED)

    # The model

    def hooks(self, model: Any) -> list[Any]:  # noqa: ARG002 - a mutant's are on the model
        """Return the hooks that are on the model while it computes."""
        return []

    def forward(self, model: Any) -> None:
        # A tower has other attention, and is done before.
        inputs, real_BS = self.inputs(model), self.even(self.batch["attention_mask"]).bool()
        hooks = self.hooks(model)
        with ulysses.computing_in_parts(
            model, real_BS, self.sp, attend=self.attention, whole=self.whole, own=self.own
        ) as seen:
            self.out = model(**inputs, **seen, **self.asked)
        for hook in hooks:
            hook.remove()
        self.logits_BLV: Tensor = self.out.logits

    def inputs(self, model: Any) -> dict[str, Any]:  # noqa: ARG002 - one with images needs it
        return {"input_ids": self.cut(self.batch["input_ids"]), "position_ids": self.positions()}

    def positions(self) -> Tensor:
        return self.cut(self.batch["position_ids"])

    def attention(self, *given: Any, **named: Any) -> Any:
        """Attend to whole rows with some heads; see `ulysses.attention`."""
        columns = named["real_RS"].shape[1]
        return ulysses.attention(*given, place_S=self.order(columns), **named)

    # What losses are made of

    def share(self) -> Any:
        """Return this rank's share of the loss, or of the loss and of its metrics."""
        return -self.mean(self.logps())

    def logps(self) -> Tensor:
        """Return the log-probability of each label, zero where there is none."""
        shares_BLV = self.log_softmax(self.logits_BLV.float())
        logps_BL = shares_BLV.gather(-1, self.labels_BL.clamp(min=0)[..., None])[..., 0]
        return logps_BL.masked_fill(~self.is_target_BL, 0)

    def log_softmax(self, logits_BLV: Tensor) -> Tensor:
        return logits_BLV.log_softmax(-1)

    def mean(self, x_BL: Tensor) -> Tensor:
        """Return this rank's share of the average over all targets."""
        return (x_BL * self.is_target_BL).sum() / self.targets()

    def targets(self) -> Tensor:
        """Return the number of targets of all micro-batches on all ranks."""
        return self.over_all(self.own_targets()).clamp(min=1)

    def own_targets(self) -> Tensor:
        """Return the number of targets of all micro-batches on this rank."""
        now, counts = self.batch, []
        for part in self.parts:
            self.look_at(part)
            counts.append(self.is_target_BL.sum())
        self.look_at(now)
        return torch.stack(counts).sum()

    def over_all(self, x: Tensor) -> Tensor:
        return summed(x, self.sp, self.dp)

    def of_rows(self, x_BL: Tensor) -> Tensor:
        """Return the sum of each row, over the ranks that share it."""
        total: Tensor = Sum.apply(x_BL.sum(1), self.sp)  # type: ignore[no-untyped-call]
        return total

    def targets_of_rows(self) -> Tensor:
        return summed(self.is_target_BL.sum(1), self.sp).clamp(min=1)

    def rows(self) -> Tensor:
        """Return the number of rows of all micro-batches of all replicas."""
        own = sum(len(part["labels"]) for part in self.parts)
        return summed(torch.tensor(own, device=self.labels_BL.device), self.dp)

    def once(self, x: Tensor) -> Tensor:
        """Return this rank's share of what all ranks of a sequence compute."""
        share: Tensor = Once.apply(x, self.sp.size())  # type: ignore[no-untyped-call]
        return share

    def other_logps(self, name: str) -> Tensor:
        """Return the log-probabilities of another policy in the places of this one's."""
        return self.next(self.batch[name])

    # The end of the step

    def backward(self, share: Tensor) -> None:
        share.backward()

    def reduce(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self.reduced(parameter.grad)

    def reduced(self, gradient: Tensor) -> Tensor:
        return self.over_all(gradient)

    def reported(self, share: Tensor) -> Tensor:
        return self.over_all(share)

    def reported_metrics(self, shares: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.over_all(share) for name, share in shares.items()}
