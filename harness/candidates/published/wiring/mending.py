"""Released functions with something around them, where a bug of theirs is mended."""

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
    """While it lasts, an attribute is what `around` makes of it."""
    return patch.object(owner, name, around(getattr(owner, name)))


def window_counts_the_token_itself(original: Call) -> Call:
    """flash-attn counts the keys before a query, transformers the query's own as well."""

    @wraps(original)
    def call(*given: Any, window_size: tuple[int, int] = (-1, -1), **named: Any) -> Any:
        behind = window_size[0] - 1 if window_size[0] > 0 else window_size[0]
        return original(*given, window_size=(behind, window_size[1]), **named)

    return call


@contextmanager
def window_whatever_the_shard(
    hf_adapter: Any, rings: Callable[[Around], AbstractContextManager[Any]]
) -> Iterator[None]:
    """ring-flash-attn's adapter hands the window on to its `rings`, short as a shard may be."""
    window: list[int | None] = [None]

    def attend(original: Call) -> Call:
        @wraps(original)
        def call(*given: Any, sliding_window: int | None = None, **named: Any) -> Any:
            window[0] = sliding_window
            return original(*given, sliding_window=sliding_window, **named)

        return call

    def ring(original: Call) -> Call:
        @wraps(original)
        def call(*given: Any, **named: Any) -> Any:
            if window[0] is not None:
                named["window_size"] = (window[0], window[0])
            return original(*given, **named)

        return call

    with wrapped(hf_adapter, "flash_attention_forward", attend), rings(ring):
        yield


def blocks_told_the_end(ring: Any) -> AbstractContextManager[Any]:
    """Each block's backward gets the result of all blocks, not its own part.

    The ring is ms-swift's, of which twinkle has a copy.
    """
    block = ring.backward

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
            **named: Any,
        ) -> Any:
            # (cu_seqlens, max_seqlen, the first half of every row, the second)
            half = others[3]
            whole = [dout[0], out[0], lse[0].transpose(0, 1)]

            def of_block(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> None:
                # The first two are the block's own out and log-sum-exp.
                dout, out, lse = whole if len(q) == len(whole[0]) else [x[half] for x in whole]
                block(dout, q, k, v, out, lse.transpose(0, 1).contiguous(), *rest[2:])

            with patch.object(ring, "backward", of_block):
                return released(group, dout, q, k, v, out, lse, *others, **named)

        return backward

    return wrapped(ring, "zigzag_ring_flash_attn_varlen_backward", around)
