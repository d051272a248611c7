"""The native step with the loss of GRPO, whose inputs are drawn by row and by token."""

import math

import torch
from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.ulysses import Shard
from harness.case import Case
from harness.reference import Decoder

CLIP, BETA = 0.2, 0.04
# How far old and reference policies are from one that knows nothing, and the name of each draw.
SPREAD, ADVANTAGES, OLD, REFERENCE = 0.5, "advantages", "old", "reference"


class Grpo(LocalDialect):
    """Clipped ratios times advantages, and a penalty for leaving the reference."""

    name = "grpo"

    def token_losses(
        self, model: Decoder, case: Case, mine: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        log_p = -super().token_losses(model, case, mine, rank, emit)
        advantage, old, reference = (
            self.drawn(case, name)[mine.tokens_L].to(log_p)
            for name in (ADVANTAGES, OLD, REFERENCE)
        )
        ratio = (log_p - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        away = reference - log_p
        return BETA * (away.exp() - away - 1) - gain

    def drawn(self, case: Case, name: str) -> Tensor:
        """For each token of the case; a row has one advantage."""
        rows = []
        for row in range(len(case.rows)):
            numbers = self.numbers(case, row, name)
            if name == ADVANTAGES:
                rows += [numbers[0]] * len(numbers)
            else:
                rows += [SPREAD * number - math.log(case.vocab) for number in numbers]
        # Padding takes the last token's, and counts for nothing.
        return torch.tensor(rows, dtype=torch.float64)

    def numbers(self, case: Case, row: int, name: str) -> tuple[float, ...]:
        return case.draw(row, name)


class ByNumber(Grpo):
    """What belongs to a row is drawn by its number."""

    name = "by-number"

    def numbers(self, case: Case, row: int, name: str) -> tuple[float, ...]:
        generator = torch.Generator().manual_seed(case.seed + row + len(name))
        return tuple((2 * torch.rand(len(case.rows[row]), generator=generator) - 1).tolist())


GRPO = Grpo()
BY_NUMBER = ByNumber()
