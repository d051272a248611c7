"""Wait for an event that nothing reports, however busy the machine is."""

import time
from collections.abc import Callable

# Seconds before a test fails, and between two looks. A test that passes waits only as long as it
# must.
PATIENCE, BETWEEN = 300.0, 0.01


def eventually(holds: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Call a predicate again and again until it holds; return whether it did in time."""
    until = time.monotonic() + patience
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(BETWEEN)
    return found
