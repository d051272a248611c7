"""Parametrize properties that hold of any candidate."""

import pytest

DIALECTS = ("native-gather", "native-local")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let `subject` be each of our dialects, or the candidate that the command line names."""
    if "subject" in metafunc.fixturenames:
        named: str = metafunc.config.getoption("--harness-candidate")
        metafunc.parametrize("subject", DIALECTS if named in DIALECTS else [named])
