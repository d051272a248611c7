"""Ulysses attention for any transformers model.

Legend: B rows, S columns, L columns of this rank, N heads, H head dim.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from properties.planted.collectives import AllToAll, Gathered


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
