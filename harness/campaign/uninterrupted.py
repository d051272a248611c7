"""What is counted is counted whole."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def undisturbed() -> Iterator[None]:
    """A Ctrl-C that comes meanwhile comes after it."""
    came: list[int] = []
    before: dict[int, Callable[..., Any]] = {}
    try:
        # Elsewhere nobody may, and no signal is handled there.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                handler = signal.getsignal(number)
                if callable(handler):
                    before[number] = handler
                    signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for kept, handler in before.items():
            signal.signal(kept, handler)
        if came:
            signal.raise_signal(came[0])
