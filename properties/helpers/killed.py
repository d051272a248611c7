"""Kill `golden generate` at each of its changes to a folder, and print the state of the store.

Run as `python -m properties.helpers.killed FOLDER`: it forks, which is unsafe in a process with
threads. The first child is killed at its first change of the folder, the second at its second
change, and so on until one is done before. After each child it prints "old", "new", or what is
wrong with the store.
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

# The audit events of Python that change a folder.
EVENTS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
GENERATE = ["golden", "generate", "--accept", "--reason", "to be killed", "--json"]


# Computed once for all children, since only the writing is under test.
compute_once = cache(generate.compute)


def at_event(number: int, folder: Path, blow: signal.Signals = signal.SIGKILL) -> None:
    """Send this process a signal at its n-th change of the folder."""
    remaining = number

    def audit(event: str, args: tuple[object, ...]) -> None:
        nonlocal remaining
        if event in EVENTS and isinstance(args[0], str | Path) and str(folder) in str(args[0]):
            remaining -= 1
            if remaining == 0:
                os.kill(os.getpid(), blow)

    sys.addaudithook(audit)


def regenerate(folder: Path, times: float, event: int) -> None:
    """Scale every golden, and get killed at one of the changes of the folder."""

    def changed(case: Case) -> Trace:
        trace, scaled = compute_once(case), Trace()
        for key in trace:
            scaled.put(key, Entry(times * trace[key].values, trace[key].tokens))
        return scaled

    for name in ("compute", "rowwise"):
        setattr(generate, name, changed)
    at_event(event, folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main([*GENERATE, "--store", str(folder)])


def was_killed(folder: Path, times: float, event: int) -> bool:
    """Whether a child that generates goldens was killed before it was done."""
    child = os.fork()
    if child == 0:
        regenerate(folder, times, event)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def state(store: Store, before: float, after: float, first: dict[str, float]) -> str:
    """Describe the state of the store, whose losses are `before` or `after` times the first."""
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
    first, factor = losses(store), 1.0
    for golden in examine(store.files())[0].values():
        compute_once(golden.vector.case)
    for event in count(1):
        killed = was_killed(folder, factor * 2, event)
        found = state(store, factor, factor * 2, first)
        print(found, flush=True)  # noqa: T201 - read by a test
        factor = factor * 2 if found == "new" else factor
        if not killed:
            break


if __name__ == "__main__":
    kill_all(Path(sys.argv[1]))
