"""The script beside a page: the commands that run it without the harness, and what they print.

`ci/findings.py` runs the commands and keeps what they print, as a terminal shows it, in a file
beside the script: the *transcript*.
"""

import os
import re
import subprocess
import textwrap
from collections.abc import Iterable
from pathlib import Path

from harness.candidates.published.bugs import Bug, about
from harness.candidates.published.library import Library

FOLDER = "findings"
# The Python of libraries, and of their scripts, that need no other.
PYTHON = "3.11"
# The torch that all scripts were run with.
TORCH = "torch==2.13.0"
PROMPT = "$ "


def script_of(library: Library, bug: Bug, docs: Path) -> Path:
    """Return the path of a bug's script, which needs the library and not the harness."""
    return docs / FOLDER / library.name / f"{bug.key}.py"


def transcript_of(library: Library, bug: Bug, docs: Path) -> Path:
    """Return the path of what a bug's script prints, with and without --control."""
    return script_of(library, bug, docs).with_suffix(".txt")


def install(library: Library) -> str:
    """Return the commands that make an environment of a library in an empty folder."""
    python, pip = f"python{library.python or PYTHON}", "env/bin/pip install"
    lent = about(library).lent
    # A library that lends setuptools is built from its sources, with that one.
    is_built = any(pin.startswith("setuptools==") for pin in lent)
    options = "--no-deps --no-build-isolation" if is_built else "--no-deps"
    commands = (
        f"{python} -m venv env",
        " ".join((pip, TORCH, *lent)),
        " ".join((pip, options, *library.requirements)),
    )
    return "".join(f"{_folded(command)}\n" for command in commands)


def runs(bug: Bug) -> tuple[str, str]:
    """Return the commands that run a bug's script in such a folder, without and with --control."""
    run, status = f"env/bin/python {bug.key}.py", 'echo "exit status $?"'
    return f"{run}; {status}", f"{run} --control; {status}"


def make(commands: str, folder: Path) -> None:
    """Run all commands of `install` in a folder; raise if one of them fails."""
    shell(f"set -e\n{commands}", folder)


def transcript(commands: Iterable[str], folder: Path) -> str:
    """Run commands in a folder -> what a terminal shows of them, without their stderr."""
    return "".join(f"{PROMPT}{command}\n{shell(command, folder)}" for command in commands)


def statuses(text: str) -> list[int]:
    """Return the exit statuses in a transcript."""
    return [int(found) for found in re.findall(r"^exit status (\d+)$", text, re.MULTILINE)]


def shell(commands: str, folder: Path) -> str:
    """Run commands with nothing of the harness -> what they print; raise if the last one fails.

    What they write to stderr goes where that of this process goes.
    """
    ours = ("PYTHON", "HARNESS", "VIRTUAL_ENV")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    run = subprocess.run(
        ["sh", "-c", commands],
        cwd=folder,
        env=alone,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
    )
    return run.stdout


def script_section(library: Library, bug: Bug, docs: Path) -> list[str]:
    """Return the paragraphs of a page about its script; none if there is no script."""
    script = script_of(library, bug, docs)
    if not script.is_file():
        return []
    needs = (
        f"[{script.name}]({script.name}) beside this page needs no GPU and nothing of the "
        "harness. In a folder that holds the script alone, these commands install what it "
        f"imports, with Python {library.python or PYTHON}. Our torch was the build for a CPU."
    )
    parts = ["## Script", needs, f"```\n{install(library)}```"]
    kept = transcript_of(library, bug, docs)
    if not kept.is_file():
        return parts
    shows = (
        f"With `--control` {bug.control} Then the same step is right. The exit status is 1 where "
        "the bug shows, else 0. This is what a terminal shows, without what goes to stderr:"
    )
    return [*parts, shows, f"```\n{kept.read_text()}```"]


def _folded(command: str) -> str:
    """Return a command on lines that a page can show; a shell reads them as one."""
    lines = textwrap.wrap(command, 90, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines)
