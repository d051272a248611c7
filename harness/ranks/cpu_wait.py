"""How busy the machine is for some processes: what they wait for, it would not give anybody."""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

# Long enough for a scheduler to have taken turns.
SAMPLE = 0.3


def waited(pid: int) -> dict[str, float]:
    """By thread, the seconds in which it was ready to run and had no processor."""
    seconds = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        # Threads end while we look; a kernel without such statistics has no such file.
        with contextlib.suppress(OSError, IndexError):
            seconds[str(file)] = int(file.read_text().split()[1]) / 1e9
    return seconds


def share_waited(pids: Iterable[int]) -> float:
    """Measure which part of the next moment the worst off of their threads waits."""
    pids = list(pids)
    before, began = [waited(pid) for pid in pids], time.monotonic()
    time.sleep(SAMPLE)
    passed = time.monotonic() - began
    after = [waited(pid) for pid in pids]
    longer = [
        now[thread] - then[thread]
        for then, now in zip(before, after, strict=True)
        for thread in then.keys() & now.keys()
    ]
    return min(max(longer, default=0.0) / passed, 1.0)
