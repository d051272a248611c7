"""Tests force the order of events; none relies on what a machine gets done in some time."""

import ast
from pathlib import Path

import pytest

from properties.helpers.places import ROOT

# What lets time pass, and what tells how much has passed.
SLEEPS, CLOCKS = {"sleep", "Timer"}, {"monotonic", "perf_counter", "time", "time_ns"}
# Who may, and why.
MAY = {
    "helpers/wait.py": "the one place that waits for what cannot be heard",
    "meta/diagnosis/test_worked_example.py": "it gives a deadline, and does not measure",
    "meta/failure/test_shrink_history.py": "it promises how long a search takes; a long test",
    "meta/ranks/test_controller_faults.py": "that all ends at once is what is promised",
    "meta/ranks/test_rank_faults.py": "that a fault is told in time is what is promised",
    "meta/ranks/test_shared_gpu.py": "that ranks are given up in time is what is promised",
    "meta/report/test_browser.py": "how long a page takes is what is promised",
}


def calls(tree: ast.AST) -> set[str]:
    """The clocks that are called in it."""
    called = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = set()
    for function in called:
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in SLEEPS or (owner == "time" and function.attr in CLOCKS):
                names.add(function.attr)
        elif isinstance(function, ast.Name) and function.id in SLEEPS | CLOCKS - {"time"}:
            names.add(function.id)
    return names


def test_no_test_sleeps_or_looks_at_a_clock_but_those_that_say_why() -> None:
    folder = ROOT / "properties"
    found = {
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        # What is planted is wrong on purpose, and a rival is as it is.
        if "planted" not in file.parts and "rivals" not in file.parts
        if calls(ast.parse(file.read_text()))
    }
    assert found == set(MAY)


@pytest.mark.parametrize(
    "line", ["time.sleep(1)", "sleep(1)", "threading.Timer(1, f)", "x = time.monotonic() - t"]
)
def test_a_clock_is_seen(line: str, tmp_path: Path) -> None:
    (tmp_path / "test.py").write_text(f"def test():\n    {line}\n")
    assert calls(ast.parse((tmp_path / "test.py").read_text()))


def test_what_is_no_clock_is_not() -> None:
    assert not calls(ast.parse("self.time()\ntimer(1)\nparse('time.sleep(1)')"))
