"""Exceptions that no code expected: a sentence for the user, and a file with the traceback."""

import os
import tempfile
import traceback

from harness.untrusted import printable


def describe_unexpected(error: Exception) -> str:
    """Write the traceback to a new file; return one sentence with the error and that file."""
    summary = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    try:
        number, name = tempfile.mkstemp(prefix="harness-error-", suffix=".txt")
        with os.fdopen(number, "w") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as other:
        return f"nothing can be judged here: {summary}; nor can it be described in full: {other}"
    return f"nothing can be judged here: {summary}; in full in {name}"
