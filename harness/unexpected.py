"""What nobody expected: told in one sentence, and in full in a file."""

import os
import tempfile
import traceback

from harness.untrusted import printable


def told_in_full(error: Exception) -> str:
    """What nobody expected, in one sentence; all of it is in a file."""
    said = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    try:
        number, name = tempfile.mkstemp(prefix="harness-error-", suffix=".txt")
        with os.fdopen(number, "w") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as other:
        return f"nothing can be judged here: {said}; nor can it be told in full: {other}"
    return f"nothing can be judged here: {said}; in full in {name}"
