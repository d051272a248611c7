"""Which candidates a property is about when it is about no one in particular."""

import pytest

DIALECTS = ("native-gather", "native-local")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`subject` is each dialect of our own, or the one candidate of the command line."""
    if "subject" in metafunc.fixturenames:
        named: str = metafunc.config.getoption("--harness-candidate")
        metafunc.parametrize("subject", DIALECTS if named in DIALECTS else [named])
