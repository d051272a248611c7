"""The code that pages show, for tests that run it."""

import re

from properties.helpers.places import ROOT


def shown(page: str, *changes: tuple[str, str]) -> str:
    """Return the first block of Python code on a page, with replacements."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found
    code = found[1]
    for right, wrong in changes:
        assert code.count(right) == 1, f"not exactly one {right!r} in {page}"
        code = code.replace(right, wrong)
    return code
