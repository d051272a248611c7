"""What each loss comes to on one rank: the share of this rank, and that of each metric.

Legend: B rows, S columns, L columns of this rank, V vocabulary, T tokens, E experts.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.recipes.batch import IGNORED
from properties.planted.collectives import Gathered
from properties.planted.shard import Shard, summed

Share = tuple[Tensor, dict[str, Tensor]]


def clipped(ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """The surrogate, and one wherever its clip decides."""
    near = ratio.clamp(0.8, 1.2)
    return -torch.min(ratio * advantage, near * advantage), 1.0 * ((ratio - near) * advantage > 0)


def supervised(shard: Shard) -> Tensor:
    return -(shard.logps_BL.sum() / shard.targets)


def grpo(shard: Shard) -> Share:
    ratio_BL = (shard.logps_BL - shard.old("old_logps")).exp()
    loss_BL, clipped_BL = clipped(ratio_BL, shard.advantages()[:, None])
    return shard.mean(loss_BL), {"clipped": shard.mean(clipped_BL)}


def grpo_sequences(shard: Shard) -> Share:
    ratio_BL = (shard.logps_BL - shard.old("old_logps")).exp()
    loss_BL, clipped_BL = clipped(ratio_BL, shard.advantages()[:, None])
    counts_B = shard.targets_by_row
    if shard.fault == "rows_counted_locally":
        counts_B = shard.is_target_BL.sum(1).clamp(min=1)
    loss = ((loss_BL * shard.is_target_BL).sum(1) / counts_B).sum() / shard.rows
    return loss, {"clipped": shard.mean(clipped_BL)}


def gspo(shard: Shard) -> Share:
    gain_BL = (shard.logps_BL - shard.old("old_logps")) * shard.is_target_BL
    if shard.fault == "ratio_of_a_shard":
        mean_B = gain_BL.sum(1) / shard.is_target_BL.sum(1).clamp(min=1)
    else:
        mean_B = shard.of_rows(gain_BL) / shard.targets_by_row
    loss_B, clipped_B = clipped(mean_B.exp(), shard.advantages())
    loss, share = (shard.once(x_B.sum() / shard.rows) for x_B in (loss_B, clipped_B))
    return loss, {"clipped": share}


# Estimates of a KL, given the difference of two log-probabilities.
KL: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda x: x,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: torch.expm1(-x) + x,
}


def grpo_regularised(shard: Shard, estimate: str) -> Share:
    loss, metrics = grpo(shard)
    reference = "old_logps" if shard.fault == "old_for_reference" else "reference_logps"
    kl = shard.mean(KL[estimate](shard.logps_BL - shard.old(reference)))
    shares_BLV = shard.logits_BLV.float().softmax(-1)
    entropy_BL = -(shares_BLV * shard.logits_BLV.float().log_softmax(-1)).sum(-1)
    if shard.fault == "entropy_with_padding":
        entropy = entropy_BL.sum() / shard.targets
    elif shard.fault == "entropy_unshifted":
        is_target_BL = shard.cut(shard.batch["labels"], IGNORED) != IGNORED
        entropy = (entropy_BL * is_target_BL).sum() / shard.targets
    else:
        entropy = shard.mean(entropy_BL)
    beta = 0.0 if shard.fault == "kl_missing" else 0.1
    return loss + beta * kl - 0.01 * entropy, metrics | {"kl": kl, "entropy": entropy}


def dpo(shard: Shard) -> Tensor:
    gain_BL = (shard.logps_BL - shard.old("reference_logps")) * shard.is_target_BL
    gain_B = gain_BL.sum(1) if shard.fault == "ratio_of_a_shard" else shard.of_rows(gain_BL)
    return shard.once(-F.logsigmoid(0.1 * (gain_B[0::2] - gain_B[1::2])).mean())


def reward_pairs(shard: Shard) -> Share:
    """Each row's last token is on one of the ranks that share it."""
    real_BS = shard.batch["attention_mask"]
    is_last_BS = real_BS * (real_BS.flip(1).cumsum(1).flip(1) == 1)
    if shard.fault == "reward_at_padding":
        is_last_BS = F.pad(torch.zeros_like(real_BS)[:, 1:], (0, 1), value=1)
    is_last_BL = shard.cut(is_last_BS)
    if shard.fault == "reward_of_a_shard":
        real_BL = shard.cut(real_BS)
        is_last_BL = real_BL * (real_BL.flip(1).cumsum(1).flip(1) == 1)
    reward_B = shard.of_rows(shard.logits_BLV[..., 0].float() * is_last_BL)
    margin_B = reward_B[0::2] - reward_B[1::2]
    centre_B = (reward_B[0::2] + reward_B[1::2]) ** 2
    loss = shard.once((F.softplus(-margin_B) + 0.01 * centre_B).mean())
    return loss, {"margin": shard.once(margin_B.mean())}


def balanced(shard: Shard, z: float = 0.0) -> Share:
    """Each rank has the share of its tokens; choices of experts are counted over all ranks."""
    real_T = shard.cut(shard.batch["attention_mask"]).flatten().bool()
    if shard.fault == "router_with_padding":
        real_T = torch.ones_like(real_T)
    logits_TE = torch.cat([x[real_T] for x in shard.out.router_logits]).float()
    shares_TE = logits_TE.softmax(-1)
    experts = shares_TE.shape[1]
    chosen_TE = F.one_hot(shares_TE.topk(2).indices, experts).to(shares_TE.dtype).sum(1)
    own = torch.tensor(len(shares_TE), device=shares_TE.device)
    count, chosen_E = summed(own), chosen_TE.sum(0)
    if shard.fault == "balance_of_a_rank":
        balance = experts * (chosen_E / own * shares_TE.sum(0) / own).sum()
    else:
        balance = experts * (summed(chosen_E) / count * shares_TE.sum(0) / count).sum()
    if shard.fault == "z_of_a_rank":
        count = own * dist.get_world_size()
    squares = (logits_TE.logsumexp(-1) ** 2).sum() / count
    times = dist.get_world_size() if shard.fault == "balance_of_all_ranks" else 1
    loss = supervised(shard) + times * 0.01 * balance + z * squares
    return loss, {"balance": balance, "z": squares}


def gae(shard: Shard) -> Tensor:
    """Advantages of whole rows, before they are cut."""
    batch = shard.batch
    if shard.fault == "advantages_of_a_shard":
        batch = {name: shard.cut(x) for name, x in batch.items() if x.ndim > 1}
    real_BS, values_BS = batch["attention_mask"], batch["old_values"]
    errors_BS = batch["rewards"] + 0.99 * F.pad(values_BS[:, 1:], (0, 1)) - values_BS
    gains_BS, later = torch.zeros_like(values_BS), torch.zeros_like(values_BS[:, 0])
    for column in reversed(range(values_BS.shape[1])):
        later = errors_BS[:, column] * real_BS[:, column] + 0.99 * 0.95 * later
        gains_BS[:, column] = later * real_BS[:, column]
    return gains_BS if shard.fault == "advantages_of_a_shard" else shard.cut(gains_BS)


def ppo_critic(shard: Shard) -> Tensor:
    """Values belong to tokens, and not to targets that are one further."""
    batch = shard.batch
    old_BL, is_target_BL = shard.cut(batch["old_values"]), shard.cut(batch["labels"], IGNORED)
    is_target_BL = is_target_BL != IGNORED
    new_BL = shard.logits_BLV[..., 0].float() * shard.cut(batch["attention_mask"])
    returns_BL = gae(shard) + old_BL
    near_BL = new_BL.clamp(old_BL - 0.2, old_BL + 0.2)
    loss_BL = torch.max((new_BL - returns_BL) ** 2, (near_BL - returns_BL) ** 2) / 2
    return (loss_BL * is_target_BL).sum() / summed(is_target_BL.sum()).clamp(min=1)


def ppo_actor(shard: Shard) -> Share:
    """Advantages are those of the targets, which are one token further than what predicts them."""
    is_target_BL = shard.cut(shard.batch["labels"], IGNORED) != IGNORED
    gain_BL = gae(shard)
    everywhere = shard.fault != "whitened_by_shard"
    count, total = is_target_BL.sum(), (gain_BL * is_target_BL).sum()
    if everywhere:
        count, total = summed(count), summed(total)
    centred_BL = (gain_BL - total / count.clamp(min=1)) * is_target_BL
    squares = centred_BL.square().sum()
    if everywhere:
        squares = summed(squares)
    gain_BL = centred_BL * (squares / count.clamp(min=1) + 1e-8).rsqrt()
    # Each rank needs the gain of the first token of the next.
    whole_BS: Tensor = Gathered.apply(gain_BL, 1, shard.group)  # type: ignore[no-untyped-call]
    gain_BL = shard.next(whole_BS)
    delta_BL = shard.logps_BL - shard.old("old_logps")
    loss_BL, clipped_BL = clipped(delta_BL.exp(), gain_BL)
    kl = shard.mean(KL["k3"](delta_BL))
    return shard.mean(loss_BL) + 0.1 * kl, {"kl": kl, "clipped": shard.mean(clipped_BL)}


def distilled(shard: Shard, *, reverse: bool) -> Tensor:
    teacher_BLV = shard.cut(shard.batch["teacher_logits"])
    if shard.fault == "teacher_uncut":
        teacher_BLV = shard.even(shard.batch["teacher_logits"])[:, : teacher_BLV.shape[1]]
    given_BLV, own_BLV = (x.log_softmax(-1) for x in (teacher_BLV, shard.logits_BLV.float()))
    if reverse != (shard.fault == "other_direction"):
        return shard.mean((own_BLV.exp() * (own_BLV - given_BLV)).sum(-1))
    return shard.mean((given_BLV.exp() * (given_BLV - own_BLV)).sum(-1))
