"""The release without each of its listed bugs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from harness.candidates.published.library import Mend


def no_ring() -> AbstractContextManager[Any]:
    """While this lasts, attention runs in one piece instead of a ring: causal, by rows."""
    from yunchang.hybrid import attn_layer

    from harness.candidates.published.wiring.whole import attend_zigzag

    return patch.dict(attn_layer.RING_IMPL_DICT, zigzag=attend_zigzag)


@contextmanager
def not_async() -> Iterator[None]:
    """While this lasts, use the layer whose all-to-alls are differentiable, without a ring."""
    from harness.candidates.published.yunchang import candidate, library

    layer = patch.object(candidate, "AsyncLongContextAttention", library.LongContextAttention)
    with layer, no_ring():
        yield


MENDS: dict[str, Mend] = {
    "fa3-not-causal": no_ring,
    "async-no-gradients": not_async,
    "ring-window-by-block": no_ring,
}
