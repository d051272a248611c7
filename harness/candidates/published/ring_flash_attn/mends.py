"""The release without its listed bug."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from torch import Tensor

from harness.candidates.published.library import Mend


def window_over_rows() -> AbstractContextManager[Any]:
    """While this lasts, attention runs in one piece, and a window counts distances in the row."""
    import torch

    from harness.candidates.published.ring_flash_attn import candidate
    from harness.candidates.published.wiring import whole

    def varlen(
        q: Tensor, k: Tensor, v: Tensor, ends: Tensor, _longest: int, **options: Any
    ) -> Tensor:
        group, window = options["group"], options["window_size"][0]
        sizes = ends.diff().tolist()
        rows = torch.arange(len(sizes)).repeat_interleave(ends.diff().long())
        positions = torch.cat([whole.zigzag(size, group) for size in sizes])
        return whole.attend(q[None], k[None], v[None], (rows, positions), window, group)[0]

    return patch.multiple(
        candidate,
        zigzag_ring_flash_attn_func=whole.attend_zigzag,
        zigzag_ring_flash_attn_varlen_func=varlen,
    )


MENDS: dict[str, Mend] = {"ring-window-by-block": window_over_rows}
