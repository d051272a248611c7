"""Ways to run without a listed bug."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.distributed import ProcessGroup

from harness.candidates.published.library import Mend


def windows_of_rows() -> AbstractContextManager[Any]:
    """Attention in one piece, where distances are those in the row."""
    import torch

    from harness.candidates.published.ring_flash_attn import candidate
    from harness.candidates.published.wiring import whole

    def zigzag(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window_size: Any, group: ProcessGroup
    ) -> Tensor:
        assert causal
        place_L = whole.zigzag(q.shape[1], group)
        where = torch.zeros_like(place_L), place_L
        return whole.attend(q, k, v, where, window_size[0], group)

    def varlen(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor, _longest: int, **named: Any
    ) -> Tensor:
        group, window = named["group"], named["window_size"][0]
        sizes = ends.diff().tolist()
        rows = torch.arange(len(sizes)).repeat_interleave(ends.diff().long())
        places = torch.cat([whole.zigzag(size, group) for size in sizes])
        return whole.attend(q[None], k[None], v[None], (rows, places), window, group)[0]

    return patch.multiple(
        candidate,
        zigzag_ring_flash_attn_func=zigzag,
        zigzag_ring_flash_attn_varlen_func=varlen,
    )


MENDS: dict[str, Mend] = {"ring-window-by-block": windows_of_rows}
