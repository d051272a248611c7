"""What the pages list is what the code has, and what they show runs."""

import re
from pathlib import Path
from typing import get_args

import tolerances

import docs
from harness.campaign.markdown import marked
from harness.case import Case, Dtype, parse

ROOT = Path(__file__).parent.parent
CASES = (ROOT / "docs" / "cases.md").read_text()


def test_tables_are_as_the_script_writes_them() -> None:
    written = docs.pages()
    assert len(written) == 7
    for page, text in written.items():
        assert page.read_text() == text, f"{page.name} is out of date; run ci/docs.py"
        assert text.count("\n| ") > 12


def test_tolerances_are_shown_as_they_are_in_force() -> None:
    page = tolerances.PAGE.read_text()
    assert marked(page, "factors", tolerances.factors()) == page
    # For each dtype, what was measured with them.
    assert re.findall(r"^\*\*(\w+)\*\*: 1000 cases", page, re.MULTILINE) == list(get_args(Dtype))
    assert all(float(used) < 1 for used in re.findall(r"of a\s+budget was (\S+)\.", page))


def test_the_line_that_is_shown_is_a_case_as_it_is_written() -> None:
    (line,) = re.findall(r"^case/1 .*", CASES, re.MULTILINE)
    assert str(parse(line)) == line


def test_every_field_of_a_case_is_explained() -> None:
    rows = re.findall(r"^\| (`.*?) \|", CASES, re.MULTILINE)
    explained = set(re.findall(r"`(\w+)`", "".join(rows)))
    fields = {"dim" if field == "head_dim" else field for field in Case.__dataclass_fields__}
    renamed = {"micro_batches": "micro", "kv_heads": "heads", "pad_id": "pad"}
    assert {renamed.get(field, field) for field in fields} <= explained


def test_the_strategy_that_is_shown_draws() -> None:
    found = re.search(r"```python\n(.*?)```", CASES, re.DOTALL)
    assert found
    names: dict[str, object] = {}
    exec(found[1], names)
    test = names["test_something"]
    assert callable(test)
    test()
