"""What the threads of a rank are doing."""

import sys
import threading
import traceback
from types import FrameType


def frames_of_threads() -> dict[str, FrameType]:
    """Where each thread is but the one that asks; the main one, and torch's own, come last.

    Torch's threads run backward on a GPU, and then the main one only waits for them.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread()
    frames = {
        names.get(ident, f"torch's {ident}"): frame
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, for debuggers
        if ident != threading.get_ident()
    }

    def place(name: str) -> int:
        # A thread that Python did not start is a dummy to it, once it has looked.
        return 1 if name == main.name else 2 * name.startswith(("torch's", "Dummy"))

    return {name: frames[name] for name in sorted(frames, key=place)}


def stacks(frames: dict[str, FrameType]) -> list[str]:
    """The last calls of each; threads are named where there are several."""
    lines: list[str] = []
    for name, frame in frames.items():
        lines += [f"  thread {name}\n"] if len(frames) > 1 else []
        lines += traceback.format_stack(frame)[-12:]
    return lines


def being_imported(frame: FrameType | None) -> str:
    """The module that was asked for first, of those whose import is under way."""
    name = ""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib"):
            name = str(frame.f_locals["name"])
        frame = frame.f_back
    return name
