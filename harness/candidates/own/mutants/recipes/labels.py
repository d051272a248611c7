"""Bugs in labels, and in what belongs to them, of losses that shift several things.

Legend: B rows, S columns, L columns of this rank, V vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.bank import mutant
from harness.candidates.own.shares.losses import Distilled, Dpo, Grpo, GrpoK3, Share
from harness.candidates.own.shares.step import Supervised
from harness.recipes.batch import IGNORED, Batch


@mutant("B13b", "huggingface/transformers#36607", needs=("sp>1",), named="label-lost-at-edge")
class ShiftsItsShard(Supervised):
    """Each rank shifts the labels of its own columns, and ignores the last of them."""

    family = "mistral"

    def cut_labels(self) -> Tensor:
        return F.pad(self.cut(self.batch["labels"], IGNORED)[:, 1:], (0, 1), value=IGNORED)


@mutant("B167", "THUDM/slime#1135", needs=("sp>1",), named="column-misplaced")
class TeacherUncut(Distilled):
    """The student's logits are cut and the teacher's are not: every rank has the first of them."""

    def teacher(self) -> Tensor:
        teacher_BSV = self.batch["teacher_logits"]
        return self.even(teacher_BSV)[:, : self.labels_BL.shape[1]]


@mutant("B168", "modelscope/ms-swift#8436", needs=(), named="label-shifted")
class DistilsUnshifted(Distilled):
    """Logits are masked by the labels of their own tokens, not by those of the next."""

    def cut_labels(self) -> Tensor:
        return self.cut(self.batch["labels"], IGNORED)


@mutant("B169", "ByteDance-Seed/VeOmni#583", needs=("sp>1",), named="label-shifted")
class ShiftsTwiceIfShared(Dpo):
    """Labels come shifted where ranks share a sequence, and are shifted there once more."""

    def cut_labels(self) -> Tensor:
        labels_BS = self.batch["labels"]
        if self.sp.size() > 1:
            labels_BS = F.pad(labels_BS[:, 1:], (0, 1), value=IGNORED)
        return self.next(labels_BS, IGNORED)


@mutant("B27", "PrimeIntellect-ai/prime-rl#1525", needs=(), named="column-shifted")
class OldUnshifted(Grpo):
    """The old policy's log-probabilities are not shifted: each is that of the token before."""

    family = "qwen3"

    def other_logps(self, name: str) -> Tensor:
        return self.cut(self.batch[name])


@mutant("B24b", "huggingface/trl#5620", needs=(), named="loss-misreported")
class EntropyUnshifted(GrpoK3):
    """The entropy in the log is masked by labels that are not shifted; the loss is right."""

    def share(self) -> Share:
        loss, metrics = super().share()
        is_target_BL = self.cut(self.batch["labels"], IGNORED) != IGNORED
        entropy = (self.entropies() * is_target_BL).sum() / self.targets()
        return loss, metrics | {"entropy": entropy}


@mutant("B214", "axolotl-ai-cloud/axolotl#2700", needs=(), named="column-shifted")
class TeacherBeginsLate(Distilled):
    """The teacher has no logits for the first token, which are left out and not padded."""

    def teacher(self) -> Tensor:
        return self.cut(F.pad(self.batch["teacher_logits"][:, 1:], (0, 0, 0, 1)))


@mutant("B215", "ServiceNow/Fast-LLM#431", needs=("sp>1",), named="mask-replaced")
class MaskUncut(Distilled):
    """The mask of the divergence is not cut: every rank takes the first of it."""

    def look_at(self, batch: Batch) -> None:
        super().look_at(batch)
        labels_BS = self.even(F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED), IGNORED)
        self.is_target_BL = labels_BS[:, : self.labels_BL.shape[1]] != IGNORED


@mutant("B242", "OpenRLHF/OpenRLHF#1338", needs=(), named="label-replaced")
class PaddingPredicted(Supervised):
    """The last token of a row has the padding behind it for a label, and the mask lets it in."""

    family = "qwen3"

    def cut_labels(self) -> Tensor:
        real_BS, labels_BS = self.batch["attention_mask"], self.batch["labels"]
        is_behind_BS = F.pad(real_BS[:, :-1], (1, 0)) > real_BS
        return self.next(labels_BS.masked_fill(is_behind_BS, 0), IGNORED)


@mutant("B243", "NVIDIA-NeMo/RL#2745", needs=("sp>1",), named="label-lost-at-edge")
class LastColumnDroppedTwice(Distilled):
    """Where ranks share a sequence, the last column that has a label is dropped, and counted."""

    def mean(self, x_BL: Tensor) -> Tensor:
        columns = self.batch["labels"].shape[1]
        is_kept_S = torch.arange(columns, device=x_BL.device) != columns - 2
        is_kept_BL = self.cut(is_kept_S.expand_as(self.batch["labels"]))
        return super().mean(x_BL * is_kept_BL if self.sp.size() > 1 else x_BL)


@mutant("B244", "huggingface/trl#6006", needs=(), named="mask-replaced")
class BehindTheLongestPrompt(Distilled):
    """Targets begin behind the longest prompt of a micro-batch; shorter prompts lose some."""

    def look_at(self, batch: Batch) -> None:
        first_B = (batch["labels"] != IGNORED).int().argmax(1)
        place_S = torch.arange(batch["labels"].shape[1], device=first_B.device)
        kept_BS = batch["labels"].masked_fill(place_S < first_B.max(), IGNORED)
        super().look_at(batch | {"labels": kept_BS})


LEFT_OUT: dict[str, str] = {
    "B191": "no family predicts several tokens, so there is one shift of labels",
    "B193": "no family predicts several tokens from one embedding",
}
