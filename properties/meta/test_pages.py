"""What the pages list is what the code has, and what they show runs."""

import re
from math import prod
from typing import get_args

import pytest
import tolerances
import torch

import docs
from harness.campaign.markdown import marked
from harness.candidates import Rank
from harness.case import LEARNING_RATE, Case, Dtype, Model, Row, parse
from harness.reference.decoder import NORM_EPSILON, ROPE_BASE, Decoder
from properties.helpers.places import ROOT

CASES = (ROOT / "docs" / "cases.md").read_text()
TUTORIAL = (ROOT / "docs" / "writing-a-candidate.md").read_text()


def test_pages_are_as_the_script_writes_them() -> None:
    written = docs.pages()
    for page, text in written.items():
        assert page.read_text() == text, f"{page.name} is out of date; run ci/docs.py"
    # Beside these there is a page for each finding.
    tables = [text for page, text in written.items() if "findings" not in page.parts]
    assert len(tables) == 9
    assert all(text.count("\n| ") > 12 for text in tables)


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


def shapes_as_told(case: Case) -> dict[str, list[int]]:
    """The model's parameters as the table has them."""
    sizes = {
        "kv_heads": case.kv_heads,
        "heads": case.heads,
        "dim": case.head_dim,
        "vocab": case.vocab,
        "hidden": case.heads * case.head_dim,
        "2": 2,
    }
    told: dict[str, list[int]] = {}
    for name, shape, where in re.findall(
        r"^\| `([\w.]+)` \| \[(.*)\] \| (.*) \|", TUTORIAL, re.MULTILINE
    ):
        fields = re.match(r"`(.*?)`", where)
        if fields and fields[1] not in (case.model, f"tied={case.tied:d}"):
            continue
        size = [prod(sizes[word] for word in axis.split(" x ")) for axis in shape.split(", ")]
        numbers = range(case.layers) if ".N." in name else [0]
        told |= {name.replace("N", str(number)): size for number in numbers}
    return told


@pytest.mark.parametrize("model", get_args(Model))
@pytest.mark.parametrize("tied", [0, 1])
def test_the_parameters_that_are_told_are_those_of_the_model(model: str, tied: int) -> None:
    fields = f"heads=6/3 dim=4 layers=2 vocab=11 sp=1 model={model} tied={tied}"
    case = parse(f"case/1 rows=3:111 {fields}")
    decoder = Decoder(case, torch.float64)
    have = {name: list(parameter.shape) for name, parameter in decoder.named_parameters()}
    assert shapes_as_told(case) == have


def test_the_constants_of_the_model_are_told_as_they_are() -> None:
    text = " ".join(TUTORIAL.split())
    (epsilon,) = re.findall(r"an epsilon of (\S+)\. ", text)
    (base,) = re.findall(r"base of the rotary embedding is (\d+);", text)
    (parts,) = re.findall(r"a learning rate of 1/(\d+)\.", text)
    assert (float(epsilon), float(base), 1 / int(parts)) == (
        NORM_EPSILON,
        ROPE_BASE,
        LEARNING_RATE,
    )


def test_the_attributes_that_are_told_are_there() -> None:
    case = parse("case/1 rows=3:111")
    told = re.findall(r"^\| (.*?) \|", TUTORIAL, re.MULTILINE)
    ranks, cases = told.index("attribute of `rank`"), told.index("attribute of `case`")
    of_rank = set(re.findall(r"`(\w+)`", "".join(told[ranks + 1 : cases])))
    assert of_rank == Rank.__dataclass_fields__.keys()
    for cell in told[cases + 2 : told.index("parameter")]:
        for name in re.findall(r"`(?:len\()?(\w+)", cell):
            assert hasattr(case, name)
        for name in re.findall(r"\]\.(\w+)", cell):
            assert hasattr(Row, name)


def test_the_strategy_that_is_shown_draws() -> None:
    found = re.search(r"```python\n(.*?)```", CASES, re.DOTALL)
    assert found
    names: dict[str, object] = {}
    exec(found[1], names)
    test = names["test_something"]
    assert callable(test)
    test()
