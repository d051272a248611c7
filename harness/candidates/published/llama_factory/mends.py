"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from harness.candidates.published.library import Mend


def window_passed_on() -> AbstractContextManager[Any]:
    """While this lasts, the attention that is called gets the requested window."""
    from harness.candidates.published.llama_factory import library

    released = library.parallel.new_flash_attn_forward

    def forward(*states: Any, attn_fn: Any, sliding_window: int | None, **kwargs: Any) -> Tensor:
        attend = partial(attn_fn, sliding_window=sliding_window)
        out: Tensor = released(*states, attn_fn=attend, sliding_window=sliding_window, **kwargs)
        return out

    return patch.object(library.parallel, "new_flash_attn_forward", forward)


def kv_heads_repeated() -> AbstractContextManager[Any]:
    """While this lasts, keys and values get as many heads as queries before the exchange."""
    from harness.candidates.published.llama_factory import library

    released = library.parallel.new_flash_attn_forward

    def forward(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
        out: Tensor = released(q, k, v, *args, **kwargs)
        return out

    return patch.object(library.parallel, "new_flash_attn_forward", forward)


def positions_continue() -> AbstractContextManager[Any]:
    """While this lasts, padding continues the positions of a row, and begins no new row."""
    from harness.candidates.published.llama_factory import library

    released = library.parallel.padding_and_split_data

    def split(data: dict[str, Tensor], mesh: Any) -> Any:
        positions = data["position_ids"]
        missing = -positions.shape[-1] % mesh.size()
        if len(positions) == 1 and missing:
            more = positions[:, -1:] + positions.new_ones(1, missing).cumsum(1)
            data["position_ids"] = torch.cat((positions, more), 1)
        return released(data, mesh)

    return patch.object(library.parallel, "padding_and_split_data", split)


MENDS: dict[str, Mend] = {
    "padding-takes-the-row": positions_continue,
    "window-dropped": window_passed_on,
    "kv-heads-never-checked": kv_heads_repeated,
}
