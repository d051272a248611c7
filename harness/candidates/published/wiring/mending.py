"""Wrap released functions to run a library without a listed bug.

The rings here are those of ring-flash-attn and ms-swift, which other libraries call or copied.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from torch import Tensor

Call = Callable[..., Any]
# around(function) -> the function that takes its place.
Around = Callable[[Call], Call]


def wrapped(owner: Any, name: str, around: Around) -> AbstractContextManager[Any]:
    """While this lasts, replace an attribute by what `around` makes of it."""
    return patch.object(owner, name, around(getattr(owner, name)))


def window_counts_the_token_itself(original: Call) -> Call:
    """Subtract one: unlike flash-attn, transformers counts the query's own key as well."""

    @wraps(original)
    def call(*args: Any, window_size: tuple[int, int] = (-1, -1), **kwargs: Any) -> Any:
        behind = window_size[0] - 1 if window_size[0] > 0 else window_size[0]
        return original(*args, window_size=(behind, window_size[1]), **kwargs)

    return call


@contextmanager
def window_on_any_shard(
    hf_adapter: Any, rings: Callable[[Around], AbstractContextManager[Any]]
) -> Iterator[None]:
    """While this lasts, ring-flash-attn's adapter passes the window on however short a shard is.

    `rings` wraps the ring functions that the adapter calls.
    """
    window: list[int | None] = [None]

    def attend(original: Call) -> Call:
        @wraps(original)
        def call(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> Any:
            window[0] = sliding_window
            return original(*args, sliding_window=sliding_window, **kwargs)

        return call

    def ring(original: Call) -> Call:
        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if window[0] is not None:
                kwargs["window_size"] = (window[0], window[0])
            return original(*args, **kwargs)

        return call

    with wrapped(hf_adapter, "flash_attention_forward", attend), rings(ring):
        yield


def blocks_get_the_final_result(ring: Any) -> AbstractContextManager[Any]:
    """While this lasts, each block's backward gets the result of all blocks, not its own part.

    The ring is ms-swift's, of which twinkle has a copy.
    """
    block_backward = ring.backward

    def around(released: Call) -> Call:
        @wraps(released)
        def backward(
            group: Any,
            dout: Tensor,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            out: Tensor,
            lse: Tensor,
            *others: Any,
            **kwargs: Any,
        ) -> Any:
            # (cu_seqlens, max_seqlen, the first half of every row, the second)
            half = others[3]
            final = [dout[0], out[0], lse[0].transpose(0, 1)]

            def of_block(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
                # The first two of `rest` are the block's own out and log-sum-exp.
                dout, out, lse = final if len(q) == len(final[0]) else [x[half] for x in final]
                block_backward(dout, q, k, v, out, lse.transpose(0, 1).contiguous(), *rest[2:])

            with patch.object(ring, "backward", of_block):
                return released(group, dout, q, k, v, out, lse, *others, **kwargs)

        return backward

    return wrapped(ring, "zigzag_ring_flash_attn_varlen_backward", around)
