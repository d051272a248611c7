"""axolotl's rings without their listed bugs.

Legend: B rows, S tokens of all ranks, L tokens of one rank.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from harness.candidates.published.axolotl.wrapping import missing, wrapping_the_cut
from harness.candidates.published.wiring import mending
from harness.candidates.published.wiring.gathering import all_gather
from harness.candidates.published.wiring.mending import Around, Call, wrapped


def window_over_all() -> AbstractContextManager[Any]:
    """While this lasts, a window counts distances in the whole row."""
    return _wrapping_batch_ring(lambda _: _gathered(None))


@contextmanager
def padding_hidden() -> Iterator[None]:
    """While this lasts, every rank knows which keys are real."""
    mask: list[Tensor | None] = [None]

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **options: Any) -> Any:
            more = missing(batch, options)
            mask[0] = F.pad(batch["attention_mask"], (0, more)).bool()
            return original(batch, **options)

        return call

    with wrapping_the_cut(apply), _wrapping_batch_ring(lambda _: _gathered(mask)):
        yield


def window_counts_the_token_itself() -> AbstractContextManager[Any]:
    return _wrapping_rings(mending.window_counts_the_token_itself)


def window_on_any_shard() -> AbstractContextManager[Any]:
    from ring_flash_attn.adapters import hf_adapter

    return mending.window_on_any_shard(hf_adapter, _wrapping_rings)


def _gathered(mask: list[Tensor | None] | None) -> Call:
    """Return attention over the keys of all ranks, for a ring; its `mask` is filled later."""
    from harness.candidates.published.flash_stand_in import flash
    from harness.candidates.published.wiring.decoder import eager

    def call(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        group: dist.ProcessGroup,
        window_size: tuple[int, int],
        **_: Any,
    ) -> Tensor:
        flash.calls["in the place of a ring"] += 1
        k, v = (torch.cat(all_gather(x, group), 1) for x in (k, v))
        positions = torch.arange(k.shape[1])
        back_LS = positions.chunk(group.size())[group.rank()][:, None] - positions
        seen_LS = back_LS >= 0
        if window_size[0] >= 0:
            seen_LS &= back_LS <= window_size[0]
        seen = seen_LS.expand(len(q), -1, -1)
        if mask is not None and mask[0] is not None:
            seen = seen & mask[0][:, None]
        out: Tensor = eager(q, k, v, seen)
        return out

    return call


@contextmanager
def _wrapping_rings(around: Around) -> Iterator[None]:
    """While this lasts, wrap both functions of ring-flash-attn that axolotl calls."""
    import ring_flash_attn

    with (
        wrapped(ring_flash_attn, "llama3_flash_attn_varlen_func", around),
        _wrapping_batch_ring(around),
    ):
        yield


def _wrapping_batch_ring(around: Around) -> AbstractContextManager[Any]:
    """While this lasts, wrap the ring that takes no lengths of rows."""
    from harness.candidates.published.axolotl import library

    functions = library.batch_ring.RING_ATTN_FUNC_MAPPING
    name = library.RingAttnFunc.BATCH_RING
    return patch.dict(functions, {name: around(functions[name])})
