"""Tests force the order of events: none sleeps, or measures time, without a good reason."""

import ast

import pytest

from properties.helpers.places import ROOT

# Functions that let time pass, and functions that read a clock.
SLEEPS, CLOCKS = {"sleep", "Timer"}, {"monotonic", "perf_counter", "time", "time_ns"}
# Files that may call them, each with its reason.
EXEMPT = {
    "helpers/wait.py": "the one place that polls, for events without a notification",
    "meta/diagnosis/test_worked_example.py": "it passes a deadline, and does not measure",
    "meta/failure/test_shrink_history.py": "a long test of how long a search takes",
    "meta/ranks/test_rank_faults.py": "it tests that a fault is reported in time",
    "meta/ranks/test_shared_gpu.py": "it tests that ranks are given up in time",
    "meta/report/test_browser.py": "it tests how long a page takes",
    "meta/supervision/test_controller_faults.py": "it tests that all processes end at once",
}


def calls(tree: ast.AST) -> set[str]:
    """Return the names of the functions of SLEEPS and CLOCKS that the code calls."""
    functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    names = set()
    for function in functions:
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in SLEEPS or (owner == "time" and function.attr in CLOCKS):
                names.add(function.attr)
        elif isinstance(function, ast.Name) and function.id in SLEEPS | CLOCKS - {"time"}:
            names.add(function.id)
    return names


def test_only_exempt_tests_sleep_or_read_a_clock() -> None:
    folder = ROOT / "properties"
    found = {
        str(file.relative_to(folder))
        for file in folder.rglob("*.py")
        # Planted code is wrong on purpose, and rivals are code of other projects.
        if "planted" not in file.parts and "rivals" not in file.parts
        if calls(ast.parse(file.read_text()))
    }
    assert found == set(EXEMPT)


@pytest.mark.parametrize(
    "line", ["time.sleep(1)", "sleep(1)", "threading.Timer(1, f)", "x = time.monotonic() - t"]
)
def test_a_call_of_a_clock_is_found(line: str) -> None:
    assert calls(ast.parse(f"def test():\n    {line}\n"))


def test_functions_with_similar_names_are_not_taken_for_clocks() -> None:
    assert not calls(ast.parse("self.time()\ntimer(1)\nparse('time.sleep(1)')"))
