"""Ways to run without a listed bug."""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.published.library import Mend


def window_handed_on() -> AbstractContextManager[Any]:
    """The attention that is called gets the window that was asked for."""
    from harness.candidates.published.llama_factory import library

    released = library.parallel.new_flash_attn_forward

    def forward(*states: Any, attn_fn: Any, sliding_window: int | None, **named: Any) -> Tensor:
        attend = partial(attn_fn, sliding_window=sliding_window)
        out: Tensor = released(*states, attn_fn=attend, sliding_window=sliding_window, **named)
        return out

    return patch.object(library.parallel, "new_flash_attn_forward", forward)


def kv_heads_repeated() -> AbstractContextManager[Any]:
    """Keys and values have as many heads as queries before they are exchanged."""
    from harness.candidates.published.llama_factory import library

    released = library.parallel.new_flash_attn_forward

    def forward(q: Tensor, k: Tensor, v: Tensor, *others: Any, **named: Any) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        out: Tensor = released(q, k, v, *others, **named)
        return out

    return patch.object(library.parallel, "new_flash_attn_forward", forward)


def positions_go_on() -> AbstractContextManager[Any]:
    """Padding continues the positions of a row, and begins none."""
    from harness.candidates.published.llama_factory import library

    released = library.parallel.padding_and_split_data

    def split(data: dict[str, Tensor], mesh: Any) -> Any:
        places = data["position_ids"]
        missing = -places.shape[-1] % mesh.size()
        if len(places) == 1 and missing:
            more = places[:, -1:] + places.new_ones(1, missing).cumsum(1)
            data["position_ids"] = torch.cat((places, more), 1)
        return released(data, mesh)

    return patch.object(library.parallel, "padding_and_split_data", split)


MENDS: dict[str, Mend] = {
    "padding-takes-the-row": positions_go_on,
    "window-dropped": window_handed_on,
    "kv-heads-never-checked": kv_heads_repeated,
}
