"""The candidates that a property runs on if it names none.

A property is a claim that must hold for any correct step; a test tries it on generated cases. For
each property there is also a test in which a mutant, or a planted step, breaks it.

- `test_*.py`: a step equals plain training, and its rows, kernels and memory are right;
- `step`: properties of parts of the native step that need no reference;
- `metamorphic`: a candidate agrees with itself on cases that are related to each other;
- `rivals`: the acceptance rules of other projects, on the same mutants;
- `planted`: candidates for tests, most of them wrong on purpose; a test names them as `FILE:NAME`;
- `helpers`: what tests share; `golden`: the stored goldens; `meta`: tests of the harness itself.
"""

import pytest

DIALECTS = ("native-gather", "native-local")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make `subject` each native dialect, or the one candidate that the command line names."""
    if "subject" in metafunc.fixturenames:
        candidate: str = metafunc.config.getoption("--harness-candidate")
        metafunc.parametrize("subject", DIALECTS if candidate in DIALECTS else [candidate])
