#!/usr/bin/env -S .venv/bin/python
"""Run the same commands in two checkouts, and show what a user sees that is not the same.

Run it as `.venv/bin/python ci/compare_runs.py COMMIT`: it compares that commit with the working
tree. It compares exit statuses, what is printed, and every file that is written, but for times,
paths and names of temporary files. `--only WORD` takes the commands that contain this word.
"""

import argparse
import difflib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from project import ROOT

DEADLINE = 600
CASE = "case/1 rows=3:111,4:1011 sp=2"
SMALL = "--ranks 2 --sp 2 --dp 1 --dtype fp64 --cases 12"
MINE = """
from harness.candidates.own.native import LocalDialect
from harness.candidates.own.mutants import BANK

class Refuses(LocalDialect):
    name = "refuses"
    def supports(self, case):
        return "it takes one row" if len(case.rows) > 1 else None

class Crashes(LocalDialect):
    name = "crashes"
    def run(self, case, rank, emit):
        if rank.index:
            raise ValueError("it is tired")
        super().run(case, rank, emit)

REFUSES, CRASHES, WRONG = Refuses(), Crashes(), BANK["B14"]
"""
# Each command runs in the folder that the commands before it have written to.
COMMANDS = [
    "--help",
    "--version",
    "check --help",
    "merge --help",
    "repro --help",
    "golden --help",
    "golden verify --help",
    "golden add --help",
    "mutants --help",
    "conformance --help",
    "report --help",
    f"check {SMALL}",
    f"check {SMALL} --json",
    f"check {SMALL} --candidate native-local --pools 2",
    "check --ranks 2 --cases 30 --candidate native-local --json",
    f"check {SMALL} --candidate mutants.B14",
    f"check {SMALL} --candidate mutants.B14 --candidate native-local --json --report pages",
    f"check {SMALL} --candidate mutants.B01 --no-diagnose --keep-going 2",
    f"check {SMALL} --candidate mutants.B43 --against self",
    f"check {SMALL} --candidate native-local --against self --json",
    f"check {SMALL} --candidate mine.py:WRONG",
    f"check {SMALL} --candidate mine.py:REFUSES",
    f"check {SMALL} --candidate mine.py:CRASHES",
    f"check {SMALL} --candidate mine.py:NOBODY",
    "check --candidate nobody",
    "check --cases none",
    "check --sp 3 --ranks 2",
    "check --set layers=0",
    "check --dtype fp12",
    "check --shard 3/2",
    f"check {SMALL} --candidate native-local --device pretend",
    f"check {SMALL} --candidate native-local --shard 1/2 --json > first.json",
    f"check {SMALL} --candidate native-local --shard 2/2 --json > second.json",
    "merge first.json second.json",
    "merge first.json second.json --json",
    "merge first.json",
    "merge first.json first.json",
    "merge nothing.json",
    f"check {SMALL} --candidate native-local --resume kept",
    f"check {SMALL} --candidate native-local --resume kept --json",
    "check --cases 12 --resume kept",
    f"repro '{CASE}'",
    f"repro '{CASE}' --candidate mutants.B14",
    f"repro '{CASE}' --candidate mutants.B14 --json --script wrong.py --report shown",
    f"repro '{CASE}' --candidate mutants.B01 --shrink --like",
    f"repro '{CASE}' --candidate mutants.B43 --against self",
    f"repro '{CASE}' --candidate mine.py:CRASHES",
    "repro 'case/1 rows=3:111 sp=2 heads=3/2'",
    "repro nothing",
    "repro --seed 3 --cases 5 --ranks 2 --candidate mutants.B14",
    "golden list",
    "golden verify --ranks 2 --sp 1,2 --candidate native-local",
    "golden verify --ranks 2 --sp 2 --candidate mutants.B14",
    f"golden add mine '{CASE}' --comment 'one that is ours' --store store",
    "golden verify --store store --ranks 2 --sp 2 --json",
    "golden diff --store store",
    "mutants --only B14,B43 --cases 20 --ranks 2",
    "mutants --only B14 --cases 20 --ranks 2 --json",
    "candidates list",
    "candidates install nobody",
    "conformance nobody",
    "report first.json pages --out again",
    "report nothing",
    "doctor",
]
# Patterns of text that differs from run to run, and their replacements before the comparison.
VARYING = [
    (re.compile(r'("(?:\w*seconds|elapsed)": )[\d.]+'), r"\1#"),
    (re.compile(r'"code": "\w+"'), '"code": #'),
    (re.compile(r'"pace": \{.*?\}\s*\}', re.DOTALL), '"pace": #'),
    (re.compile(r"\b\d+(?:\.\d+)? (?:s|ms|MiB|min)\b"), "# s"),
    (re.compile(r"\d+ of \d+ cases in .*"), "cases in #"),
    (re.compile(rf"{tempfile.gettempdir()}/[\w./-]+"), "TEMPORARY"),
    (re.compile(r"0x[0-9a-f]+"), "0x#"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    commands = [words for words in COMMANDS if options.only in words]
    if not commands:
        parser.error(f"--only={options.only}: no command contains it")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "checkout"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", str(before), options.commit], check=True)
        try:
            return compare(before, Path(folder), commands)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)


def compare(before: Path, folder: Path, commands: list[str]) -> int:
    """Run each command in both checkouts and print the differences; return 1 if there are any."""
    changed = 0
    folders = {before: folder / "before", ROOT: folder / "after"}
    for place in folders.values():
        place.mkdir()
        (place / "mine.py").write_text(MINE)
    for words in commands:
        with ThreadPoolExecutor() as threads:
            old, new = threads.map(record_run, folders, folders.values(), repeat(words))
        lines = list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=1))
        print(f"{'differs' if lines else 'same   '}  {words}", flush=True)
        if lines:
            print("\n".join(lines[:60]), flush=True)
        changed += bool(lines)
    print(f"{changed} of {len(commands)} commands differ")
    return int(changed > 0)


def record_run(checkout: Path, folder: Path, words: str) -> list[str]:
    """Run a command in a folder; return its exit status, its output, and the files it wrote."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    run = subprocess.run(
        # With a shell, because some commands redirect their output.
        ["bash", "-c", f"{sys.executable} -m harness {words}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(checkout), "COLUMNS": "80", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    parts = [f"status {run.returncode}", "stdout", run.stdout, "stderr", run.stderr]
    for path in sorted(folder.rglob("*")):
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns:
            parts += [f"file {path.relative_to(folder)}", read(path)]
    text = "\n".join(parts)
    for path, name in ((Path(sys.prefix), "PYTHON"), (checkout, "CHECKOUT"), (folder, "HERE")):
        text = text.replace(str(path), name)
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text.splitlines()


def read(path: Path) -> str:
    """Return the text of a file, or the digest of a binary one."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
