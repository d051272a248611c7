"""`golden generate`, killed again and again; `python -m properties.helpers.killed FOLDER KILLS`.

A process of its own, since it forks, which nobody should who has threads. It prints, for each
kill, which state the store was found in: "old", "new", or what is wrong with it.
"""

import os
import signal
import sys
import time
from functools import cache
from pathlib import Path
from random import Random

from harness.case import Case
from harness.cli import main
from harness.golden import Store, examine, generate
from harness.trace import Entry, Trace
from properties.helpers.stores import stored_in

# What changes a folder, as Python tells its auditors.
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
GENERATE = ["golden", "generate", "--accept", "--reason", "to be killed", "--json"]


# Once, for all children: it is the writer that is to be killed.
computed = cache(generate.compute)


def at_event(number: int, folder: Path) -> None:
    """Kill this process at so many changes of the folder, however busy the machine is."""
    left = number

    def audit(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS and isinstance(args[0], str | Path) and str(folder) in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def regenerate(folder: Path, times: float, event: int = 0) -> None:
    """Change every golden; if told so, be killed at one of the events in the folder."""

    def changed(case: Case) -> Trace:
        trace, scaled = computed(case), Trace()
        for key in trace:
            scaled.put(key, Entry(times * trace[key].values, trace[key].tokens))
        return scaled

    for name in ("compute", "rowwise"):
        setattr(generate, name, changed)
    if event:
        at_event(event, folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main([*GENERATE, "--store", str(folder)])


def forked(folder: Path, times: float, *, event: int = 0, after: float | None = None) -> bool:
    """Whether a child that generates was killed before it was done, at an event or a moment."""
    child = os.fork()
    if child == 0:
        regenerate(folder, times, event)
        os._exit(0)
    if after is None:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    until = time.monotonic() + after
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WIFSIGNALED(status)
        time.sleep(0.0002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def state(store: Store, before: float, after: float, first: dict[str, float]) -> str:
    goldens, damages = examine(store.files())
    if damages:
        return str(damages[0])
    found = {
        name: float(golden.stored.trace["loss"].values) / first[name]
        for name, golden in goldens.items()
    }
    for word, times in (("old", before), ("new", after)):
        if all(abs(ratio - times) < 1e-9 for ratio in found.values()):
            return word
    return f"neither old nor new: {found}"


def losses(store: Store) -> dict[str, float]:
    goldens, _ = examine(store.files())
    return {name: float(golden.stored.trace["loss"].values) for name, golden in goldens.items()}


def kill_all(folder: Path, kills: int) -> None:
    store = stored_in(folder)
    first, random = losses(store), Random(0)
    for golden in examine(store.files())[0].values():
        computed(golden.vector.case)
    now, number = 1.0, 1
    while True:
        killed = forked(folder, now * 2, event=number)
        found = state(store, now, now * 2, first)
        print("event", number, found, flush=True)  # noqa: T201 - read by a test
        now = now * 2 if found == "new" else now
        if not killed:
            break
        number += 1
    started = time.monotonic()
    forked(folder, now * 2)
    within, now = time.monotonic() - started, now * 2
    for _ in range(kills):
        forked(folder, now * 2, after=random.random() * within)
        found = state(store, now, now * 2, first)
        print("moment", found, flush=True)  # noqa: T201
        # Half of them before the old one becomes the new one, however busy the machine is now.
        within *= 0.9 if found == "new" else 1.1
        now = now * 2 if found == "new" else now


if __name__ == "__main__":
    kill_all(Path(sys.argv[1]), int(sys.argv[2]))
