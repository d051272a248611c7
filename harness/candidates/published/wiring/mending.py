"""Released functions with something around them, where a bug of theirs is mended."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

Call = Callable[..., Any]
# What stands around a function.
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
