"""A step whose model has a teacher, and what can be wrong with the teacher alone.

`taught.py:right` is right; `taught.py:shifted` has that fault.

Legend: B rows, S columns, L columns of this rank, V vocabulary.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.case import Case
from harness.recipes import Recipe, step
from harness.recipes.batch import IGNORED, Batch
from properties.planted.styles import cut, gathering, sum_gradients, summed, use
from properties.planted.tiny import Tiny, next_labels

FAULTS = ("shifted", "positions_restarted", "another_row")


def build(case: Case) -> nn.Module:
    teacher = Tiny(case).requires_grad_(requires_grad=False)
    return nn.ModuleDict({"student": Tiny(case), "teacher": teacher})


def divergence(student_BSV: Tensor, teacher_BSV: Tensor, labels_BS: Tensor) -> Tensor:
    """The sum of what the student differs in from its teacher, over targets."""
    student_BSV, teacher_BSV = student_BSV.log_softmax(-1), teacher_BSV.log_softmax(-1)
    each_BS = (teacher_BSV.exp() * (teacher_BSV - student_BSV)).sum(-1)
    return (each_BS * (labels_BS != IGNORED)).sum()


def distilled(model: Any, batch: Batch) -> Tensor:
    given = batch["input_ids"], batch["position_ids"], batch["attention_mask"].bool()
    labels_BS = next_labels(batch)
    total = divergence(model["student"](*given), model["teacher"](*given), labels_BS)
    return total / (labels_BS != IGNORED).sum().clamp(min=1)


def train(model: Any, batch: Batch, mesh: Any, *, fault: str) -> Tensor:
    group = mesh["sp"].get_group()
    use(model, gathering(group))
    ids_BL, positions_BL, labels_BL, real_BS = cut(batch, group)
    student_BLV = model["student"](ids_BL, positions_BL, real_BS)
    if fault == "positions_restarted":
        positions_BL = torch.arange(ids_BL.shape[1]).expand_as(ids_BL)
    teacher_BLV = model["teacher"](ids_BL, positions_BL, real_BS)
    if fault == "shifted":
        teacher_BLV = F.pad(teacher_BLV, (0, 0, 1, 0))[:, :-1]
    if fault == "another_row":
        teacher_BLV = teacher_BLV.roll(1, 0)
    share = divergence(student_BLV, teacher_BLV, labels_BL)
    share = share / summed((labels_BL != IGNORED).sum()).clamp(min=1)
    share.backward()
    sum_gradients(model)
    return summed(share)


@cache
def __getattr__(name: str) -> Any:
    """Return the step that is right, or one with a fault."""
    if name not in {"right", *FAULTS}:
        raise AttributeError(name)
    return step(Recipe(build, distilled))(partial(train, fault=name))
