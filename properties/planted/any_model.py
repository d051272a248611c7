"""One Ulysses step for any transformers model, on several losses, and what can be wrong with it.

`any_model.py:gpt_oss__grpo` is right; `any_model.py:gpt_oss__grpo__sinks_uncut` has that fault.

Legend: B rows, S columns, L columns of this rank, N heads, H head dim, V vocabulary.
"""

from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F
from transformers import AttentionInterface

from harness.case import Case
from harness.recipes import Recipe, computed, losses, row, step, token
from harness.recipes.batch import IGNORED
from harness.recipes.families import FAMILIES, family
from properties.planted.collectives import AllToAll, Gathered


class Sum(torch.autograd.Function):
    """A sum over ranks that all use in the same way; each keeps its own share of the gradient."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, group: Any) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def summed(x: Tensor, group: Any = None) -> Tensor:
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def exchange(x: Tensor, scatter: int, gather: int, group: Any) -> Tensor:
    """Split dim `scatter` over the group, and join what arrives along dim `gather`."""
    pieces = torch.stack(x.chunk(group.size(), scatter)).contiguous()
    received: Tensor = AllToAll.apply(pieces, group)  # type: ignore[no-untyped-call]
    return torch.cat(tuple(received), gather)


def ulysses(
    _module: Any,
    q_BNLH: Tensor,
    k_BNLH: Tensor,
    v_BNLH: Tensor,
    _mask: Any,
    *,
    scaling: float,
    seen_BSS: Tensor,
    group: Any,
    fault: str,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    heads = q_BNLH.shape[1] // k_BNLH.shape[1]
    k_BNLH, v_BNLH = (x.repeat_interleave(heads, 1) for x in (k_BNLH, v_BNLH))
    q, k, v = (exchange(x, 1, 2, group) for x in (q_BNLH, k_BNLH, v_BNLH))
    place_S = torch.arange(q.shape[2], device=q.device)
    window = sliding_window if sliding_window and fault != "window_ignored" else len(place_S)
    visible_B1SS = (seen_BSS & (place_S[:, None] - place_S < window))[:, None]
    scores_BNSS = (q @ k.mT * scaling).masked_fill(~visible_B1SS, torch.finfo(q.dtype).min)
    if s_aux is not None:
        first = 0 if fault == "sinks_uncut" else group.rank() * q.shape[1]
        sinks_N11 = s_aux[first : first + q.shape[1], None, None]
        scores_BNSS = torch.cat((scores_BNSS, sinks_N11.expand(*q.shape[:3], 1)), -1)
    weights_BNSS = scores_BNSS.softmax(-1)[..., : q.shape[2]].to(v.dtype)
    return exchange(weights_BNSS @ v, 2, 1, group).transpose(1, 2), None


AttentionInterface.register("ulysses", ulysses)


def over_whole_rows(module: Any, real_BS: Tensor, group: Any, fault: str) -> None:
    """Have a layer with a state over tokens compute whole rows; this rank keeps its part."""
    inner = module.forward

    def forward(hidden_states: Tensor, **_: Any) -> Tensor:
        if fault == "state_restarted":
            mine_BL = real_BS.chunk(group.size(), 1)[group.rank()]
            restarted: Tensor = inner(hidden_states, attention_mask=mine_BL)
            return restarted
        whole: Tensor = Gathered.apply(hidden_states, 1, group)  # type: ignore[no-untyped-call]
        out: Tensor = inner(whole, attention_mask=real_BS)
        part: Tensor = out.chunk(group.size(), 1)[group.rank()]
        return part

    module.forward = forward


class Shard:
    """This rank's columns of its replica's batch, and what the model makes of them."""

    def __init__(self, model: Any, batch: dict[str, Tensor], mesh: Any, fault: str) -> None:
        self.batch, self.group, self.fault = batch, mesh["sp"].get_group(), fault
        self.replicas: int = mesh["dp"].size()
        real_BS = self._even(batch["attention_mask"]).bool()
        place_S = torch.arange(real_BS.shape[1], device=real_BS.device)
        seen_BSS = (place_S[:, None] >= place_S) & real_BS[:, None]
        # Padding sees itself: a softmax over nothing is not a number.
        seen_BSS |= place_S[:, None] == place_S
        positions_BL = self.cut(batch["position_ids"])
        if fault == "positions_restarted":
            places_L = torch.arange(positions_BL.shape[1], device=positions_BL.device)
            positions_BL = places_L.expand_as(positions_BL)
        model.set_attn_implementation("ulysses")
        for module in model.modules():
            if type(module).__name__.endswith("GatedDeltaNet"):
                over_whole_rows(module, real_BS, self.group, fault)
        routed = {"output_router_logits": True} if hasattr(model, "num_experts") else {}
        self.out = model(
            input_ids=self.cut(batch["input_ids"]),
            position_ids=positions_BL,
            use_cache=False,
            seen_BSS=seen_BSS,
            group=self.group,
            fault=fault,
            **routed,
        )
        self.logits_BLV: Tensor = self.out.logits
        labels_BL = self.next(batch["labels"], IGNORED)
        if fault == "labels_rolled_locally":
            labels_BL = F.pad(self.cut(batch["labels"], IGNORED)[:, 1:], (0, 1), value=IGNORED)
        self.is_target_BL = labels_BL != IGNORED
        self.labels_BL = labels_BL

    @cached_property
    def logps_BL(self) -> Tensor:  # noqa: N802 - its shape is part of its name
        shares_BLV = self.logits_BLV.float().log_softmax(-1)
        logps_BL = shares_BLV.gather(-1, self.labels_BL.clamp(min=0)[..., None])[..., 0]
        return logps_BL.masked_fill(~self.is_target_BL, 0)

    def _even(self, x_BS: Tensor, value: int = 0) -> Tensor:
        more = -x_BS.shape[1] % self.group.size()
        padded: Tensor = F.pad(x_BS.movedim(1, -1), (0, more), value=value).movedim(-1, 1)
        return padded

    def cut(self, x_BS: Tensor, value: int = 0) -> Tensor:
        """Return this rank's columns of a table."""
        mine: Tensor = self._even(x_BS, value).chunk(self.group.size(), 1)[self.group.rank()]
        return mine

    def next(self, x_BS: Tensor, value: int = 0) -> Tensor:
        """Return the column behind each of this rank's columns."""
        return self.cut(F.pad(x_BS[:, 1:], (0, 1), value=value), value)

    @property
    def targets(self) -> Tensor:
        """The number of all targets, on all ranks."""
        count = self.is_target_BL.sum()
        if self.fault == "tokens_counted_locally":
            return count.clamp(min=1) * dist.get_world_size()
        return summed(count).clamp(min=1)

    @property
    def targets_by_row(self) -> Tensor:
        """The number of targets of each row, on the ranks that share it."""
        return summed(self.is_target_BL.sum(1), self.group).clamp(min=1)

    @property
    def rows(self) -> Tensor:
        """The number of rows of all replicas."""
        return torch.tensor(len(self.labels_BL) * self.replicas)

    def of_rows(self, x_BL: Tensor) -> Tensor:
        """Return the sum of each row, over the ranks that share it."""
        total: Tensor = Sum.apply(x_BL.sum(1), self.group)  # type: ignore[no-untyped-call]
        return total

    def old(self, name: str) -> Tensor:
        """Return the log-probabilities of another policy in the places of this one's."""
        if self.fault == "old_unshifted":
            return self.cut(self.batch[name])
        return self.next(self.batch[name])

    def advantages(self) -> Tensor:
        gain_B = self.batch["advantages"]
        return gain_B.roll(1) if self.fault == "advantage_of_another_row" else gain_B


def clipped(ratio: Tensor, gain: Tensor) -> Tensor:
    return -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)


def supervised(shard: Shard) -> Tensor:
    return -(shard.logps_BL.sum() / shard.targets)


def grpo(shard: Shard) -> Tensor:
    ratio_BL = (shard.logps_BL - shard.old("old_logps")).exp()
    loss_BL = clipped(ratio_BL, shard.advantages()[:, None])
    return (loss_BL * shard.is_target_BL).sum() / shard.targets


def grpo_sequences(shard: Shard) -> Tensor:
    ratio_BL = (shard.logps_BL - shard.old("old_logps")).exp()
    loss_BL = clipped(ratio_BL, shard.advantages()[:, None]) * shard.is_target_BL
    counts_B = shard.targets_by_row
    if shard.fault == "rows_counted_locally":
        counts_B = shard.is_target_BL.sum(1).clamp(min=1)
    return (loss_BL.sum(1) / counts_B).sum() / shard.rows


def gspo(shard: Shard) -> Tensor:
    gain_BL = (shard.logps_BL - shard.old("old_logps")) * shard.is_target_BL
    if shard.fault == "ratio_of_a_shard":
        mean_B = gain_BL.sum(1) / shard.is_target_BL.sum(1).clamp(min=1)
    else:
        mean_B = shard.of_rows(gain_BL) / shard.targets_by_row
    loss = clipped(mean_B.exp(), shard.advantages()).sum() / shard.rows
    return _once(loss, shard)


def dpo(shard: Shard) -> Tensor:
    gain_BL = (shard.logps_BL - shard.old("reference_logps")) * shard.is_target_BL
    gain_B = gain_BL.sum(1) if shard.fault == "ratio_of_a_shard" else shard.of_rows(gain_BL)
    return _once(-F.logsigmoid(0.1 * (gain_B[0::2] - gain_B[1::2])).mean(), shard)


def balanced(shard: Shard) -> tuple[Tensor, dict[str, Tensor]]:
    """Each rank has the share of its tokens; choices of experts are counted over all ranks."""
    real_T = shard.cut(shard.batch["attention_mask"]).flatten().bool()
    shares_TE = torch.cat([x[real_T] for x in shard.out.router_logits]).float().softmax(-1)
    experts = shares_TE.shape[1]
    chosen_TE = F.one_hot(shares_TE.topk(2).indices, experts).to(shares_TE.dtype).sum(1)
    count, chosen_E = torch.tensor(len(shares_TE)), chosen_TE.sum(0)
    if shard.fault != "balance_of_a_rank":
        count, chosen_E = summed(count.to(chosen_E.device)), summed(chosen_E)
    share = experts * (chosen_E / count * shares_TE.sum(0) / count).sum()
    return supervised(shard) + 0.01 * share, {"balance": share}


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


def ppo_actor(shard: Shard) -> tuple[Tensor, dict[str, Tensor]]:
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
    delta_BL = shard.old("old_logps") - shard.logps_BL
    ratio_BL = (-delta_BL).exp()
    surrogate = clipped(ratio_BL, gain_BL) * shard.is_target_BL
    kl = ((delta_BL.exp() - delta_BL - 1) * shard.is_target_BL).sum() / shard.targets
    return surrogate.sum() / shard.targets + 0.1 * kl, {"kl": kl}


def distilled(shard: Shard) -> Tensor:
    teacher_BLV = shard.cut(shard.batch["teacher_logits"])
    if shard.fault == "teacher_uncut":
        teacher_BLV = shard._even(shard.batch["teacher_logits"])[:, : teacher_BLV.shape[1]]
    teacher_BLV = teacher_BLV.log_softmax(-1)
    shares_BLV = shard.logits_BLV.float().log_softmax(-1)
    kl_BL = (teacher_BLV.exp() * (teacher_BLV - shares_BLV)).sum(-1)
    return (kl_BL * shard.is_target_BL).sum() / shard.targets


class Once(torch.autograd.Function):
    """A loss that all ranks of a sequence compute: each trains on all of it and logs its share."""

    @staticmethod
    def forward(_ctx: Any, loss: Tensor, ranks: int) -> Tensor:
        return loss / ranks

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def _once(loss: Tensor, shard: Shard) -> Tensor:
    share: Tensor = Once.apply(loss, shard.group.size())  # type: ignore[no-untyped-call]
    return share


def train(model: Any, batch: dict[str, Tensor], mesh: Any, *, loss: Any, fault: str) -> Any:
    """One step on this rank: forward, backward, and the sum of gradients over all ranks."""
    share = loss(Shard(model, batch, mesh, fault))
    share, metrics = share if isinstance(share, tuple) else (share, {})
    share.backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        if fault == "gradients_halved":
            parameter.grad /= 2
    logged = share.detach() if fault == "loss_not_summed" else summed(share)
    if fault == "metric_of_a_rank":
        return logged, metrics
    return (logged, {name: summed(x) for name, x in metrics.items()}) if metrics else logged


OLD = {"advantages": row(-2, 2), "old_logps": computed(losses.logps)}
LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "supervised": (supervised, {}),
    "grpo": (grpo, OLD),
    "grpo_sequences": (grpo_sequences, OLD),
    "gspo": (gspo, OLD),
    "dpo": (dpo, {"reference_logps": computed(losses.logps)}),
    "distilled": (distilled, {"teacher_logits": computed(losses.logits)}),
    "balanced": (balanced, {}),
    "ppo_critic": (ppo_critic, {"rewards": token(), "old_values": computed(losses.values)}),
    "ppo_actor": (
        ppo_actor,
        {"rewards": token(), "old_values": token(), "old_logps": computed(losses.logps)},
    ),
}


def in_pairs(case: Case) -> str | None:
    """Return a reason unless rows come in pairs, as a preference needs them."""
    return f"rows={len(case.rows)}: not in pairs" if len(case.rows) % 2 else None


def __getattr__(name: str) -> Any:
    """Return the step `FAMILY__LOSS` or `FAMILY__LOSS__FAULT`."""
    model, _, rest = name.partition("__")
    loss, _, fault = rest.partition("__")
    if model.replace("_", "-") not in FAMILIES or loss not in LOSSES:
        raise AttributeError(name)
    function, columns = LOSSES[loss]
    head = "TokenClassification" if loss == "ppo_critic" else "CausalLM"
    build = family(model.replace("_", "-"), head=head)
    recipe = Recipe(build, getattr(losses, loss), columns)
    taken = partial(train, loss=function, fault=fault)
    taken.__name__ = name  # type: ignore[attr-defined]
    only = {"limits": "dp=1", "supports": in_pairs}
    return step(recipe, **(only if loss == "dpo" else {}))(taken)  # type: ignore[arg-type]
