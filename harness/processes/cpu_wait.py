"""How long processes are ready to run and get no processor, on a busy machine."""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

# Seconds; long enough for the scheduler to give every process a turn.
SAMPLE = 0.3


def seconds_waited(pid: int) -> dict[str, float]:
    """Return, for each thread, the seconds in which it was ready to run and had no processor."""
    seconds = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        # Threads end meanwhile; a kernel without such statistics has no such file.
        with contextlib.suppress(OSError, IndexError):
            seconds[str(file)] = int(file.read_text().split()[1]) / 1e9
    return seconds


def share_waited(pids: Iterable[int]) -> float:
    """Sample for a moment; return the share of it for which the worst off thread waited."""
    pids = list(pids)
    before, began = [seconds_waited(pid) for pid in pids], time.monotonic()
    time.sleep(SAMPLE)
    passed = time.monotonic() - began
    after = [seconds_waited(pid) for pid in pids]
    waits = [
        now[thread] - then[thread]
        for then, now in zip(before, after, strict=True)
        for thread in then.keys() & now.keys()
    ]
    return min(max(waits, default=0.0) / passed, 1.0)
