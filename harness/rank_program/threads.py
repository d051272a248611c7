"""The stacks of a rank's threads, and the imports under way in them."""

import sys
import threading
import traceback
from types import FrameType


def thread_frames() -> dict[str, FrameType]:
    """Return the frame of every thread but the calling one; main comes near the end, torch's last.

    Torch's own threads run backward on a GPU, and then the main thread only waits for them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread()
    frames = {
        names.get(ident, f"torch's {ident}"): frame
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, for debuggers
        if ident != threading.get_ident()
    }

    def place(name: str) -> int:
        # Python names a thread that it did not start "Dummy", if that has run Python code.
        return 1 if name == main.name else 2 * name.startswith(("torch's", "Dummy"))

    return {name: frames[name] for name in sorted(frames, key=place)}


def format_stacks(frames: dict[str, FrameType]) -> list[str]:
    """Return the last calls of each thread; threads are named if there are several."""
    lines: list[str] = []
    for name, frame in frames.items():
        lines += [f"  thread {name}\n"] if len(frames) > 1 else []
        lines += traceback.format_stack(frame)[-12:]
    return lines


def module_being_imported(frame: FrameType | None) -> str:
    """Return the module whose import was requested first in this stack, or ""."""
    name = ""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            name = str(frame.f_locals["name"])
        frame = frame.f_back
    return name


def crash_stack(text: str) -> str:
    """Return what faulthandler wrote as a stack, innermost call last.

    The stack of the main thread comes first, then that of the thread that crashed if it was
    another: backward on a GPU runs in threads of its own.
    """
    threads = [part for part in text.split("\n\n") if "(most recent call first):\n" in part]
    if not threads:
        return ""
    # faulthandler writes the main thread last.
    current = next((each for each in threads if each.startswith("Current")), threads[-1])
    lines = _calls(threads[-1])
    if current is not threads[-1]:
        lines += ["  the thread that crashed", *_calls(current)]
    return "\n".join(lines)


def _calls(thread: str) -> list[str]:
    return thread.rstrip().splitlines()[:0:-1]
