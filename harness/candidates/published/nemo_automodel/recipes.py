"""What plain training is for the library's recipes beyond supervised training, for one device.

Legend: B rows, S columns, T tokens, V vocabulary, E experts. A number of a target stands
in the target's own column.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.candidates.published.nemo_automodel.settings import BALANCED, DISTILLED
from harness.case import Case
from harness.recipes import Recipe, losses
from harness.recipes.batch import Batch
from harness.recipes.families import family as of_family

STUDENT, TEACHER = "student", "teacher"


def student_and_teacher(case: Case, *, family: str, teacher: str) -> nn.Module:
    """A model, and a frozen one of any family that has one layer more."""
    larger = replace(case, layers=case.layers + 1)
    return nn.ModuleDict(
        {
            STUDENT: of_family(family)(case),
            TEACHER: of_family(teacher)(larger).requires_grad_(False),
        }
    )


def distilled(model: Any, batch: Batch, *, kd_ratio: float, temperature: float) -> Any:
    """Cross entropy, and a teacher's forward KL at a temperature, by their shares."""
    logits_BSV = losses.logits(model[STUDENT], batch)
    with torch.no_grad():
        teacher_BSV = losses.logits(model[TEACHER], batch)
    log = {
        "ce": -losses.mean(losses.picked(logits_BSV, batch["labels"]), batch),
        "kd": losses.mean(divergence(teacher_BSV, logits_BSV, temperature), batch),
    }
    loss = (1 - kd_ratio) * log["ce"] + kd_ratio * log["kd"]
    if kd_ratio == 1:
        # Then the library leaves out cross entropy.
        del log["ce"]
    return loss, log


def divergence(teacher_BSV: Tensor, logits_BSV: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of what each token is expected to be, times temperature squared."""
    p_BSV, q_BSV = (
        (x_BSV[:, :-1].float() / temperature).log_softmax(-1)
        for x_BSV in (teacher_BSV, logits_BSV)
    )
    return F.pad(temperature**2 * (p_BSV.exp() * (p_BSV - q_BSV)).sum(-1), (1, 0))


def with_experts(case: Case, *, router_aux_loss_coef: float) -> nn.Module:
    """A model of experts, in whose configuration the weight of the balance loss stands."""
    model: Any = of_family("qwen3-moe")(case)
    model.config.router_aux_loss_coef = router_aux_loss_coef
    return model  # type: ignore[no-any-return]


def balanced(model: Any, batch: Batch) -> Any:
    """Cross entropy, with the gradient of the balance loss of each micro-batch.

    The library adds that gradient and no loss, so the loss is that of cross entropy.
    """
    names = ("input_ids", "attention_mask", "position_ids")
    given = {name: batch[name] for name in names}
    out = model(**given, use_cache=False, output_router_logits=True)
    loss = -losses.mean(losses.picked(out.logits, batch["labels"]), batch)
    real_BS = batch["attention_mask"].bool()
    parts = {*zip(batch["replica"].tolist(), batch["micro_batch"].tolist(), strict=True)}
    balances = []
    for replica, number in parts:
        is_in_B = (batch["replica"] == replica) & (batch["micro_batch"] == number)
        is_in_T = (real_BS & is_in_B[:, None]).flatten()
        balances += [
            balance(logits_TE[is_in_T], model.config.num_experts_per_tok)
            for logits_TE in out.router_logits
        ]
    term = torch.stack(balances).sum() / len(parts)
    gradient = model.config.router_aux_loss_coef * (term - term.detach())
    return loss + gradient, {"balance": term}


def balance(logits_TE: Tensor, top: int) -> Tensor:
    """Sum over experts of the share of choices times the mean probability; 1 if all are even."""
    shares_TE = logits_TE.float().softmax(-1)
    experts = shares_TE.shape[1]
    chosen_TE = F.one_hot(shares_TE.topk(top).indices, experts).sum(1).to(shares_TE.dtype)
    return experts / top * (chosen_TE.mean(0) * shares_TE.mean(0)).sum()


OF_DISTILLATION = Recipe(student_and_teacher, distilled, settings=DISTILLED)
RECIPES = {
    "kd": OF_DISTILLATION,
    "kd-vlm": OF_DISTILLATION,
    "balanced": Recipe(with_experts, balanced, settings=BALANCED),
}
