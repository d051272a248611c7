"""Delay signals while something is counted, so that it is counted whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hold_back_signals() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM; raise the first one again when the block has ended."""
    held_back: list[int] = []
    handlers: dict[int, Callable[..., Any]] = {}
    try:
        # Python handles signals in the main thread only, and lets no other thread set handlers.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    handlers[number] = handler
                    signal.signal(number, lambda number, _: held_back.append(number))
        yield
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)
        if held_back:
            signal.raise_signal(held_back[0])
