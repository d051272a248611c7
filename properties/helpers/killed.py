"""`golden generate`, killed again and again; `python -m properties.helpers.killed FOLDER`.

A process of its own, since it forks, which nobody should who has threads. It is killed at its
first change of the folder, at its second, and so on until it is done before. Of each it prints
which state the store was found in: "old", "new", or what is wrong with it.
"""

import os
import signal
import sys
from functools import cache
from itertools import count
from pathlib import Path

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


def at_event(number: int, folder: Path, blow: signal.Signals = signal.SIGKILL) -> None:
    """Strike this process at so many changes of the folder."""
    left = number

    def audit(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in EVENTS and isinstance(args[0], str | Path) and str(folder) in str(args[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), blow)

    sys.addaudithook(audit)


def regenerate(folder: Path, times: float, event: int) -> None:
    """Change every golden, and be killed at one of the events in the folder."""

    def changed(case: Case) -> Trace:
        trace, scaled = computed(case), Trace()
        for key in trace:
            scaled.put(key, Entry(times * trace[key].values, trace[key].tokens))
        return scaled

    for name in ("compute", "rowwise"):
        setattr(generate, name, changed)
    at_event(event, folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main([*GENERATE, "--store", str(folder)])


def was_killed(folder: Path, times: float, event: int) -> bool:
    """Whether a child that generates was killed before it was done."""
    child = os.fork()
    if child == 0:
        regenerate(folder, times, event)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


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


def kill_all(folder: Path) -> None:
    store = stored_in(folder)
    first, now = losses(store), 1.0
    for golden in examine(store.files())[0].values():
        computed(golden.vector.case)
    for event in count(1):
        killed = was_killed(folder, now * 2, event)
        found = state(store, now, now * 2, first)
        print(found, flush=True)  # noqa: T201 - read by a test
        now = now * 2 if found == "new" else now
        if not killed:
            break


if __name__ == "__main__":
    kill_all(Path(sys.argv[1]))
