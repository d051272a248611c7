"""Ranks are started and watched where torch wants to be extended, and by no trick."""

import ast
from collections.abc import Iterator

import pytest

from properties.helpers.places import ROOT

ROOMS = (ROOT / "harness" / "ranks", ROOT / "harness" / "watch")
# What may still be done, where, and why.
MAY = {
    ("process_exit.py", "polls"): "where the kernel of a sandbox has no handles for processes",
    ("descendants.py", "polls"): "of a process that is no child nobody hears when it is gone",
    ("cpu_wait.py", "polls"): "it samples what a scheduler did in a while",
    ("hardware.py", "takes text apart"): "a driver tells its version in text",
    ("collectives.py", "takes text apart"): "torch's log of collectives names groups in text",
    ("worker.py", "sets tempdir"): "it is documented, and to be set",
}


def tricks(source: str) -> Iterator[str]:
    """What a file does that it should not."""
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
        yield "takes text apart"
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


def test_only_what_is_listed_is_done_and_there_it_is() -> None:
    files = (file for room in ROOMS for file in room.glob("*.py"))
    found = {(file.name, each) for file in files for each in tricks(file.read_text())}
    assert found == set(MAY)


@pytest.mark.parametrize(
    ("line", "trick"),
    [
        ("import os\nos.fork = told", "sets fork"),
        ("from torch import distributed as dist\ndist.barrier = told", "sets barrier"),
        ("import os\nsetattr(os, 'fork', told)", "replaces"),
        ("open('/proc/self/mem')", "writes into memory"),
        ("import re", "takes text apart"),
        ("import time\ntime.sleep(0.01)", "polls"),
    ],
)
def test_a_trick_is_seen(line: str, trick: str) -> None:
    assert trick in tricks(line)
    assert not list(tricks("import os\nclass Own:\n    pass\nOwn.fork = 1\nos.environ['A'] = 'b'"))
