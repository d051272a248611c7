"""Ranks are started and watched through documented extension points, without tricks."""

import ast
from collections.abc import Iterator

import pytest

from properties.helpers.places import ROOT

ROOMS = ("ranks", "worlds", "supervision", "rank_program", "wire", "processes", "watch")
# The tricks that are allowed, by file, with the reason.
ALLOWED = {
    ("process_exit.py", "polls"): "the kernel of a sandbox has no handles for processes",
    ("descendants.py", "polls"): "the kernel reports the end of children only",
    ("cpu_wait.py", "polls"): "it samples what the scheduler did in a while",
    ("hardware.py", "parses text"): "the kernel lists loaded libraries as text",
    ("collectives.py", "parses text"): "torch's log of collectives names groups as text",
    ("worker.py", "sets tempdir"): "setting it is documented",
}


def tricks(source: str) -> Iterator[str]:
    """Yield the tricks in the source of a file."""
    if "/proc/self/mem" in source:
        yield "writes into memory"
    tree = ast.parse(source)
    imported = {
        (each.asname or each.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for each in node.names
    }
    if "re" in imported:
        yield "parses text"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = (each for each in node.targets if isinstance(each, ast.Attribute))
            yield from (f"sets {each.attr}" for each in targets if _root(each) in imported)
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else _root(node.func)
            if name == "sleep":
                yield "polls"
            if name == "setattr" and len(node.args) == 3:
                yield "replaces"


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_the_files_have_exactly_the_allowed_tricks() -> None:
    files = (file for room in ROOMS for file in (ROOT / "harness" / room).glob("*.py"))
    found = {(file.name, each) for file in files for each in tricks(file.read_text())}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    ("line", "trick"),
    [
        ("import os\nos.fork = other", "sets fork"),
        ("from torch import distributed as dist\ndist.barrier = other", "sets barrier"),
        ("import os\nsetattr(os, 'fork', other)", "replaces"),
        ("open('/proc/self/mem')", "writes into memory"),
        ("import re", "parses text"),
        ("import time\ntime.sleep(0.01)", "polls"),
    ],
)
def test_each_trick_is_found(line: str, trick: str) -> None:
    assert trick in tricks(line)
    assert not list(tricks("import os\nclass Own:\n    pass\nOwn.fork = 1\nos.environ['A'] = 'b'"))
