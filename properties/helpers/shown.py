"""What the pages show, to be run."""

import re

from properties.helpers.places import ROOT


def shown(page: str, *changes: tuple[str, str]) -> str:
    """The first Python code of a page, right, or wrong in some places."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert found
    code = found[1]
    for right, wrong in changes:
        assert code.count(right) == 1, f"not exactly one {right!r} in {page}"
        code = code.replace(right, wrong)
    return code
