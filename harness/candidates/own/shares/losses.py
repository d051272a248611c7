"""What each loss comes to on one rank: the share of this rank, and that of each metric.

A class has one loss; its name is a key of `LOSSES`. Plain training of it is in
`harness.recipes.losses`, with which it has no code in common.

Legend: B rows, S columns, L columns of this rank, V vocabulary, T tokens, E experts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.own.shares.step import Supervised
from harness.case import Case
from harness.recipes import computed, losses, row, token
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.columns import Column

Share = tuple[Tensor, dict[str, Tensor]]
OLD: dict[str, Column] = {"advantages": row(-2, 2), "old_logps": computed(losses.logps)}
# So far that some targets and rows are clipped.
FAR_LOGPS: dict[str, Column] = {"old_logps": computed(losses.logps, nudge=2.0**-5)}
FAR = OLD | FAR_LOGPS
REFERENCE: dict[str, Column] = {"reference_logps": computed(losses.logps)}
TEACHER: dict[str, Column] = {"teacher_logits": computed(losses.logits)}


def clipped(ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """The surrogate, and one wherever its clip decides."""
    near = ratio.clamp(0.8, 1.2)
    return -torch.min(ratio * advantage, near * advantage), 1.0 * ((ratio - near) * advantage > 0)


class Grpo(Supervised):
    """The clipped surrogate with one advantage for each row, over all targets."""

    loss, plain, columns = "grpo", staticmethod(losses.grpo), OLD

    def share(self) -> Share:
        loss_BL, clipped_BL = self.surrogate()
        return self.mean(loss_BL), {"clipped": self.mean(clipped_BL)}

    def surrogate(self) -> tuple[Tensor, Tensor]:
        ratio_BL = (self.logps() - self.other_logps("old_logps")).exp()
        return clipped(ratio_BL, self.advantages()[:, None])

    def advantages(self) -> Tensor:
        return self.batch["advantages"]


class GrpoSequences(Grpo):
    """GRPO, averaged over the targets of each row and then over rows."""

    loss, plain = "grpo_sequences", staticmethod(losses.grpo_sequences)

    def share(self) -> Share:
        loss_BL, clipped_BL = self.surrogate()
        mean_B = (loss_BL * self.is_target_BL).sum(1) / self.targets_of_rows()
        return mean_B.sum() / self.rows(), {"clipped": self.mean(clipped_BL)}


class Gspo(Grpo):
    """One ratio for each row, which the ranks that share it have together."""

    loss, plain, columns = "gspo", staticmethod(losses.gspo), FAR

    def share(self) -> Share:
        loss_B, clipped_B = clipped(self.gains().exp(), self.advantages())
        loss, share = (self.once(x_B.sum() / self.rows()) for x_B in (loss_B, clipped_B))
        return loss, {"clipped": share}

    def gains(self) -> Tensor:
        """Return how much the log-probabilities of each row grew, on average."""
        gain_BL = (self.logps() - self.other_logps("old_logps")) * self.is_target_BL
        return self.of_rows(gain_BL) / self.targets_of_rows()


class Cispo(Grpo):
    """A ratio that is limited and constant weighs the log-probability of each target."""

    loss, plain, columns = "cispo", staticmethod(losses.cispo), FAR

    def surrogate(self) -> tuple[Tensor, Tensor]:
        logps_BL = self.logps()
        ratio_BL = (logps_BL - self.other_logps("old_logps")).exp()
        gain_BL = self.weight(ratio_BL) * self.advantages()[:, None] * logps_BL
        return -gain_BL, 1.0 * (ratio_BL > 1.2)

    def weight(self, ratio_BL: Tensor) -> Tensor:
        return ratio_BL.detach().clamp(max=1.2)


# Estimates of a KL, given the difference of two log-probabilities.
KL: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: torch.expm1(-x) + x,
}


class GrpoK3(Grpo):
    """GRPO with a penalty for the KL and a bonus for entropy."""

    loss, estimate, columns = "grpo_k3", "k3", FAR | REFERENCE
    plain = staticmethod(partial(losses.grpo_regularised, estimate=losses.k3))

    def share(self) -> Share:
        loss, metrics = super().share()
        kl, entropy = self.kl(), self.entropy()
        return loss + 0.1 * kl - 0.01 * entropy, metrics | {"kl": kl, "entropy": entropy}

    def kl(self) -> Tensor:
        gain_BL = self.logps() - self.other_logps("reference_logps")
        return self.mean(KL[self.estimate](gain_BL))

    def entropy(self) -> Tensor:
        return self.mean(self.entropies())

    def entropies(self) -> Tensor:
        logps_BLV = self.log_softmax(self.logits_BLV.float())
        return -(logps_BLV.exp() * logps_BLV).sum(-1)


class GrpoK1(GrpoK3):
    """The KL is estimated by k1."""

    loss, estimate = "grpo_k1", "k1"
    plain = staticmethod(partial(losses.grpo_regularised, estimate=losses.k1))


class GrpoK2(GrpoK3):
    """The KL is estimated by k2."""

    loss, estimate = "grpo_k2", "k2"
    plain = staticmethod(partial(losses.grpo_regularised, estimate=losses.k2))


class OfPairs(Supervised):
    """The first of two rows in turn is preferred; both are on one replica."""

    only = "dp=1 micro=1"

    def supports(self, case: Case) -> str | None:
        odd = f"rows={len(case.rows)}: not in pairs" if len(case.rows) % 2 else None
        return odd or super().supports(case)


class Dpo(OfPairs):
    """What a row gained over the reference is a sum over the ranks that share it."""

    loss, plain, columns = "dpo", staticmethod(losses.dpo), REFERENCE

    def share(self) -> Tensor:
        gain_BL = (self.logps() - self.other_logps("reference_logps")) * self.is_target_BL
        gain_B = self.of_rows(gain_BL)
        return self.once(-F.logsigmoid(0.1 * (gain_B[0::2] - gain_B[1::2])).mean())


class RewardPairs(OfPairs):
    """The reward of a row is the value of its last token."""

    loss, plain, head = "reward_pairs", staticmethod(losses.reward_pairs), "TokenClassification"

    def share(self) -> Share:
        reward_B = self.of_rows(self.logits_BLV[..., 0].float() * self.is_last())
        margin_B = reward_B[0::2] - reward_B[1::2]
        centre_B = (reward_B[0::2] + reward_B[1::2]) ** 2
        loss = self.once((F.softplus(-margin_B) + 0.01 * centre_B).mean())
        return loss, {"margin": self.once(margin_B.mean())}

    def is_last(self) -> Tensor:
        """Whether a token is the last of its row, which is on one of the ranks that share it."""
        real_BS = self.batch["attention_mask"]
        return self.cut(real_BS * (real_BS.flip(1).cumsum(1).flip(1) == 1))


class Balanced(Supervised):
    """Each rank has the share of its tokens; choices of experts are counted over all ranks."""

    family, only, asked = "qwen3-moe", "micro=1", {"output_router_logits": True}
    loss, plain, z = "balanced", staticmethod(losses.balanced), 0.0

    def share(self) -> Share:
        logits_TE, count = self.router_logits(), self.routed()
        balance = self.balance(logits_TE, count)
        squares = (logits_TE.logsumexp(-1) ** 2).sum() / count
        loss = super().share() + 0.01 * balance + self.z * squares
        return loss, {"balance": balance, "z": squares}

    def router_logits(self) -> Tensor:
        """Return those of all layers for this rank's tokens."""
        real_T = self.is_routed().flatten()
        return torch.cat([x_TE[real_T] for x_TE in self.out.router_logits]).float()

    def is_routed(self) -> Tensor:
        return self.cut(self.batch["attention_mask"]).bool()

    def routed(self) -> Tensor:
        """Return the number of router logits of all ranks."""
        return self.over_all(self.is_routed().sum() * len(self.out.router_logits))

    def balance(self, logits_TE: Tensor, count: Tensor) -> Tensor:
        shares_TE = self.shares(logits_TE)
        experts = shares_TE.shape[1]
        chosen_TE = F.one_hot(shares_TE.topk(2).indices, experts).to(shares_TE.dtype).sum(1)
        often_E = self.often(chosen_TE.sum(0), count)
        return experts * (often_E * shares_TE.sum(0) / count).sum()

    def shares(self, logits_TE: Tensor) -> Tensor:
        return logits_TE.softmax(-1)

    def often(self, chosen_E: Tensor, count: Tensor) -> Tensor:
        """Return how often each expert is chosen, on average over all tokens."""
        return self.over_all(chosen_E) / count


class BalancedZ(Balanced):
    """The z-loss of routers counts as well."""

    loss, plain, z = "balanced_z", staticmethod(partial(losses.balanced, z=0.001)), 0.001


class Advantages(Supervised):
    """Of PPO: the advantages of whole rows, which ranks gather rewards and values for."""

    def gae(self, batch: Batch) -> Tensor:
        real_BS, values_BS = batch["attention_mask"], self.gathered(batch["old_values"])
        next_BS = self.following(values_BS, real_BS)
        errors_BS = self.gathered(batch["rewards"]) + 0.99 * next_BS - values_BS
        gains_BS, later = torch.zeros_like(values_BS), torch.zeros_like(values_BS[:, 0])
        for column in reversed(range(values_BS.shape[1])):
            later = errors_BS[:, column] * real_BS[:, column] + 0.99 * 0.95 * later
            gains_BS[:, column] = later * real_BS[:, column]
        return gains_BS

    def following(self, values_BS: Tensor, real_BS: Tensor) -> Tensor:  # noqa: ARG002 - packed rows need it
        """Return the value of the token behind each, zero at the end of a row."""
        return F.pad(values_BS[:, 1:], (0, 1))

    def gathered(self, x_BS: Tensor) -> Tensor:
        """Return whole rows of a column of which each rank has its part."""
        return self.whole(self.cut(x_BS))[:, : x_BS.shape[1]]


class PpoCritic(Advantages):
    """Values belong to tokens, and not to targets that are one further."""

    loss, plain, head = "ppo_critic", staticmethod(losses.ppo_critic), "TokenClassification"
    columns = {"rewards": token(), "old_values": computed(losses.values)}  # noqa: RUF012

    def share(self) -> Tensor:
        old_BL = self.cut(self.batch["old_values"])
        new_BL = self.logits_BLV[..., 0].float() * self.cut(self.batch["attention_mask"])
        returns_BL = self.cut(self.gae(self.batch)) + old_BL
        near_BL = new_BL.clamp(old_BL - 0.2, old_BL + 0.2)
        return self.mean(self.worse((new_BL - returns_BL) ** 2, (near_BL - returns_BL) ** 2) / 2)

    def worse(self, free_BL: Tensor, near_BL: Tensor) -> Tensor:
        return torch.max(free_BL, near_BL)

    def cut_labels(self) -> Tensor:
        return self.cut(self.batch["labels"], IGNORED)


class PpoCriticFar(PpoCritic):
    """The old values are so far from the new ones that some are clipped."""

    loss = "ppo_critic_far"
    columns = {"rewards": token(), "old_values": computed(losses.values, nudge=2.0**-4)}  # noqa: RUF012


class PpoActor(Advantages):
    """Advantages are those of the targets, so a rank needs that of the first token of the next."""

    loss, plain = "ppo_actor", staticmethod(losses.ppo_actor)
    columns = FAR_LOGPS | {"rewards": token(), "old_values": token()}

    def share(self) -> Share:
        delta_BL = self.logps() - self.other_logps("old_logps")
        loss_BL, clipped_BL = clipped(delta_BL.exp(), self.next(self.whole(self.whitened())))
        kl = self.kl(delta_BL)
        return self.mean(loss_BL) + 0.1 * kl, {"kl": kl, "clipped": self.mean(clipped_BL)}

    def kl(self, delta_BL: Tensor) -> Tensor:
        return self.mean(KL["k3"](delta_BL))

    def whitened(self) -> Tensor:
        """Return advantages with the mean and the variance that they have over all targets."""
        masks = [self.cut(part["labels"], IGNORED) != IGNORED for part in self.parts]
        gains = [self.cut(self.gae(part)) for part in self.parts]
        count = self.over_statistic(masks).clamp(min=1)
        mean = (
            self.over_statistic([x * mask for x, mask in zip(gains, masks, strict=True)]) / count
        )
        centred = [(x - mean) * mask for x, mask in zip(gains, masks, strict=True)]
        variance = self.over_statistic([x.square() for x in centred]) / count
        here = next(n for n, part in enumerate(self.parts) if part is self.batch)
        return centred[here] * (variance + 1e-8).rsqrt()

    def over_statistic(self, parts: list[Tensor]) -> Tensor:
        """Return the sum over all micro-batches and ranks."""
        return self.over_all(torch.stack([x_BL.sum() for x_BL in parts]).sum())


class Distilled(Supervised):
    """The KL from a teacher, whose logits are cut as those of the student."""

    loss, plain, columns, reverse = "distilled", staticmethod(losses.distilled), TEACHER, False

    def share(self) -> Tensor:
        teacher_BLV, student_BLV = (
            x.log_softmax(-1) for x in (self.teacher(), self.logits_BLV.float())
        )
        pair = (student_BLV, teacher_BLV) if self.reverse else (teacher_BLV, student_BLV)
        return self.mean(self.divergence(*pair))

    def teacher(self) -> Tensor:
        return self.cut(self.batch["teacher_logits"])

    def divergence(self, p_BLV: Tensor, q_BLV: Tensor) -> Tensor:
        return (p_BLV.exp() * (p_BLV - q_BLV)).sum(-1)


class DistilledReverse(Distilled):
    """The KL to a teacher."""

    loss, reverse = "distilled_reverse", True
    plain = staticmethod(partial(losses.distilled, reverse=True))


LOSSES: dict[str, Any] = {
    kind.loss: kind
    for kind in (
        Supervised, Grpo, GrpoSequences, Gspo, Cispo, GrpoK1, GrpoK2, GrpoK3, Dpo, RewardPairs,
        Balanced, BalancedZ, PpoCritic, PpoCriticFar, PpoActor, Distilled, DistilledReverse,
    )
}  # fmt: skip
