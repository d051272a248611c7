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

from harness.candidates.published.axolotl.wrapping import applying
from harness.candidates.published.wiring import mending
from harness.candidates.published.wiring.gathering import all_gather
from harness.candidates.published.wiring.mending import Around, Call, wrapped


def window_over_all() -> AbstractContextManager[Any]:
    """A window counts distances in the whole row."""
    return _batch_ring(lambda _: _gathered(None))


@contextmanager
def padding_hidden() -> Iterator[None]:
    """Every rank knows which keys are real."""
    mask: list[Tensor | None] = [None]

    def apply(original: Call) -> Call:
        def call(batch: dict[str, Any], **given: Any) -> Any:
            more = -batch["input_ids"].shape[1] % given["local_world_size"]
            mask[0] = F.pad(batch["attention_mask"], (0, more)).bool()
            return original(batch, **given)

        return call

    with applying(apply), _batch_ring(lambda _: _gathered(mask)):
        yield


def window_counts_the_token_itself() -> AbstractContextManager[Any]:
    return _ring(mending.window_counts_the_token_itself)


def window_whatever_the_shard() -> AbstractContextManager[Any]:
    from ring_flash_attn.adapters import hf_adapter

    return mending.window_whatever_the_shard(hf_adapter, _ring)


def _gathered(mask: list[Tensor | None] | None) -> Call:
    """Attention of a rank's queries over the keys of all ranks, in the place of a ring."""
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
        places = torch.arange(k.shape[1])
        back_LS = places.chunk(group.size())[group.rank()][:, None] - places
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
def _ring(around: Around) -> Iterator[None]:
    """Wrap both functions of ring-flash-attn that axolotl calls."""
    import ring_flash_attn

    with (
        wrapped(ring_flash_attn, "llama3_flash_attn_varlen_func", around),
        _batch_ring(around),
    ):
        yield


def _batch_ring(around: Around) -> AbstractContextManager[Any]:
    """Wrap the ring that takes no lengths of rows."""
    from harness.candidates.published.axolotl import library

    functions = library.batch_ring.RING_ATTN_FUNC_MAPPING
    name = library.RingAttnFunc.BATCH_RING
    return patch.dict(functions, {name: around(functions[name])})
