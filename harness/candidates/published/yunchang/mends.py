"""Ways to run without a listed bug."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.distributed import ProcessGroup

from harness.candidates.published.library import Mend


def no_ring() -> AbstractContextManager[Any]:
    """Attention in one piece instead of a ring: causal, with distances as they are in the row."""
    import torch
    from yunchang.hybrid import attn_layer

    from harness.candidates.published.wiring import whole

    def zigzag(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        causal: bool,
        window_size: Any,
        group: ProcessGroup,
        **_: Any,
    ) -> Tensor:
        assert causal
        place_L = whole.zigzag(q.shape[1], group)
        where = torch.zeros_like(place_L), place_L
        return whole.attend(q, k, v, where, window_size[0], group)

    return patch.dict(attn_layer.RING_IMPL_DICT, zigzag=zigzag)


@contextmanager
def not_async() -> Iterator[None]:
    """Use the layer whose all-to-alls autograd knows; a ring of one would send to itself."""
    from harness.candidates.published.yunchang import candidate, library

    layer = patch.object(candidate, "AsyncLongContextAttention", library.LongContextAttention)
    with layer, no_ring():
        yield


MENDS: dict[str, Mend] = {
    "fa3-not-causal": no_ring,
    "async-no-gradients": not_async,
    "ring-window-by-block": no_ring,
}
