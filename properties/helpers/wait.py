"""Wait for the moment that a test is about, however busy the machine is."""

import time
from collections.abc import Callable

# Of a test that fails. One that passes waits no longer than it takes.
PATIENCE, BETWEEN = 120.0, 0.01


def eventually(holds: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Whether it comes to hold. It is looked at again and again: not every end can be heard."""
    until = time.monotonic() + patience
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(BETWEEN)
    return found
