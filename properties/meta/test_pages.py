"""The tables of the pages agree with the code, and their examples work."""

import re
from math import prod
from typing import get_args

import curves
import pytest
import tolerances
import torch

import docs
from harness.campaign.markdown import replace_marked
from harness.candidates import Rank
from harness.candidates.own.mutants import NATIVE
from harness.case import LEARNING_RATE, Case, Dtype, Model, Row, parse
from harness.ranks.pool import RankPool
from harness.reference.decoder import NORM_EPSILON, ROPE_BASE, Decoder
from harness.verdict import Verdict
from properties.helpers.judging import evaluate
from properties.helpers.places import ROOT

CASES = (ROOT / "docs" / "cases.md").read_text()
TUTORIAL = (ROOT / "docs" / "writing-a-candidate.md").read_text()


def test_every_page_is_as_the_script_writes_it() -> None:
    pages = docs.pages()
    for page, text in pages.items():
        assert page.read_text() == text, f"{page.name} is out of date; run ci/docs.py"
    # Without the page of each finding.
    with_tables = [text for page, text in pages.items() if "findings" not in page.parts]
    assert len(with_tables) == 11
    assert all(text.count("\n| ") > 12 for text in with_tables)


def test_the_page_of_tolerances_is_up_to_date_and_covers_each_dtype() -> None:
    page = tolerances.PAGE.read_text()
    assert replace_marked(page, "factors", tolerances.factors()) == page
    assert re.findall(r"^\*\*(\w+)\*\*: 1000 cases", page, re.MULTILINE) == list(get_args(Dtype))
    assert all(float(used) < 1 for used in re.findall(r"of a\s+budget was (\S+)\.", page))


def test_the_page_of_equal_losses_agrees_with_the_bank_and_with_itself() -> None:
    page = curves.PAGE.read_text()
    (count,) = re.findall(r"of this kind on (\d+) cases", page)
    heads, _, *rows = (
        tuple(line.strip("| ").split(" | ")) for line in page.splitlines() if line.startswith("| ")
    )
    assert heads == curves.HEADS
    assert replace_marked(page, "curves", curves.section(rows, int(count))) == page
    for key, sentence, plain_loss, loss, *_, plain, wrong in rows:
        assert NATIVE[key].sentence == sentence
        assert loss == plain_loss
        assert len(plain) == len(wrong) == len(curves.STEPS) + len("``")


@pytest.mark.slow
def test_a_bug_on_the_page_of_equal_losses_has_right_losses_and_a_wrong_gradient(
    harness_pool: RankPool,
) -> None:
    key, *_ = re.findall(r"^\| (B\w+) ", curves.PAGE.read_text(), re.MULTILINE)
    case = parse("case/1 rows=8:11111111,5:11111 heads=8/2 layers=2 sp=4 dp=1 seed=1")
    comparison = evaluate(case, f"mutants.{key}", harness_pool)
    assert comparison.verdict is Verdict.DIVERGED
    wrong = {result.key for result in comparison.measured.keys if result.wrong}
    assert wrong
    assert not wrong & {"loss", "nll"}


def test_the_case_line_on_the_page_is_in_canonical_form() -> None:
    (line,) = re.findall(r"^case/1 .*", CASES, re.MULTILINE)
    assert str(parse(line)) == line


def test_every_field_of_a_case_is_explained() -> None:
    rows = re.findall(r"^\| (`.*?) \|", CASES, re.MULTILINE)
    explained = set(re.findall(r"`([\w.]+)`", "".join(rows)))
    fields = {"dim" if field == "head_dim" else field for field in Case.__dataclass_fields__}
    renamed = {"micro_batches": "micro", "kv_heads": "heads", "pad_id": "pad"}
    renamed["settings"] = "setting.NAME"
    assert {renamed.get(field, field) for field in fields} <= explained


def shapes_of_table(case: Case) -> dict[str, list[int]]:
    """Return the shapes of the parameters of a model, from the table of the tutorial."""
    sizes = {
        "kv_heads": case.kv_heads,
        "heads": case.heads,
        "dim": case.head_dim,
        "vocab": case.vocab,
        "hidden": case.heads * case.head_dim,
        "2": 2,
    }
    shapes: dict[str, list[int]] = {}
    for name, shape, where in re.findall(
        r"^\| `([\w.]+)` \| \[(.*)\] \| (.*) \|", TUTORIAL, re.MULTILINE
    ):
        fields = re.match(r"`(.*?)`", where)
        if fields and fields[1] not in (case.model, f"tied={case.tied:d}"):
            continue
        size = [prod(sizes[word] for word in axis.split(" x ")) for axis in shape.split(", ")]
        numbers = range(case.layers) if ".N." in name else [0]
        shapes |= {name.replace("N", str(number)): size for number in numbers}
    return shapes


@pytest.mark.parametrize("model", get_args(Model))
@pytest.mark.parametrize("tied", [0, 1])
def test_the_tutorial_lists_the_parameters_of_each_model(model: str, tied: int) -> None:
    fields = f"heads=6/3 dim=4 layers=2 vocab=11 sp=1 model={model} tied={tied}"
    case = parse(f"case/1 rows=3:111 {fields}")
    decoder = Decoder(case, torch.float64)
    shapes = {name: list(parameter.shape) for name, parameter in decoder.named_parameters()}
    assert shapes_of_table(case) == shapes


def test_the_tutorial_states_the_constants_of_the_model() -> None:
    text = " ".join(TUTORIAL.split())
    (epsilon,) = re.findall(r"an epsilon of (\S+)\. ", text)
    (base,) = re.findall(r"base of the rotary embedding is (\d+);", text)
    (parts,) = re.findall(r"a learning rate of 1/(\d+)\.", text)
    assert (float(epsilon), float(base), 1 / int(parts)) == (
        NORM_EPSILON,
        ROPE_BASE,
        LEARNING_RATE,
    )


def test_the_tutorial_lists_attributes_that_ranks_and_cases_have() -> None:
    case = parse("case/1 rows=3:111")
    cells = re.findall(r"^\| (.*?) \|", TUTORIAL, re.MULTILINE)
    ranks, cases = cells.index("attribute of `rank`"), cells.index("attribute of `case`")
    of_rank = set(re.findall(r"`(\w+)`", "".join(cells[ranks + 1 : cases])))
    assert of_rank == Rank.__dataclass_fields__.keys()
    for cell in cells[cases + 2 : cells.index("parameter")]:
        for name in re.findall(r"`(?:len\()?(\w+)", cell):
            assert hasattr(case, name)
        for name in re.findall(r"\]\.(\w+)", cell):
            assert hasattr(Row, name)


def test_the_strategy_on_the_page_draws_cases() -> None:
    example = re.search(r"```python\n(.*?)```", CASES, re.DOTALL)
    assert example
    names: dict[str, object] = {}
    exec(example[1], names)
    test = names["test_something"]
    assert callable(test)
    test()
