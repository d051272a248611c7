"""The native step with the loss of GRPO; advantages are drawn for each row, the rest by token."""

import math

import torch
from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.native.ulysses import Shard
from harness.case import Case
from harness.reference import Decoder

CLIP, BETA = 0.2, 0.04
# How far the old and the reference policy are from the uniform one, and the name of each draw.
SPREAD, ADVANTAGES, OLD, REFERENCE = 0.5, "advantages", "old", "reference"


class Grpo(LocalDialect):
    """A correct step: clipped ratios times advantages, and a penalty for leaving the reference."""

    name = "grpo"

    def token_losses(
        self, model: Decoder, case: Case, shard: Shard, rank: Rank, emit: Emit
    ) -> Tensor:
        log_p = -super().token_losses(model, case, shard, rank, emit)
        advantage, old, reference = (
            self.drawn(case, name)[shard.tokens_L].to(log_p)
            for name in (ADVANTAGES, OLD, REFERENCE)
        )
        ratio = (log_p - old).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        away = reference - log_p
        return BETA * (away.exp() - away - 1) - gain

    def drawn(self, case: Case, name: str) -> Tensor:
        """Draw a number for each token of the case; all tokens of a row share its advantage."""
        rows = []
        for row in range(len(case.rows)):
            numbers = self.numbers(case, row, name)
            if name == ADVANTAGES:
                rows += [numbers[0]] * len(numbers)
            else:
                rows += [SPREAD * number - math.log(case.vocab) for number in numbers]
        # Padding has number -1, so it takes the last token's number; it counts for nothing.
        return torch.tensor(rows, dtype=torch.float64)

    def numbers(self, case: Case, row: int, name: str) -> tuple[float, ...]:
        return case.draw(row, name)


class ByNumber(Grpo):
    """A row's numbers depend on its index in the batch instead of on its content."""

    name = "by-number"

    def numbers(self, case: Case, row: int, name: str) -> tuple[float, ...]:
        generator = torch.Generator().manual_seed(case.seed + row + len(name))
        return tuple((2 * torch.rand(len(case.rows[row]), generator=generator) - 1).tolist())


GRPO = Grpo()
BY_NUMBER = ByNumber()
