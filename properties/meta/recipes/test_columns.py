"""A failure shows the columns of its case, as plain training had them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.case import parse
from harness.compare import Verdict
from harness.compare.columns import BatchColumn
from harness.failure.bundle import read_bundle, write_bundle
from harness.failure.bundle.read import RECORD
from harness.failure.shrink import shrink
from harness.ranks.pool import RankPool
from harness.recipes import Recipe, computed
from harness.recipes.batch import Batch
from harness.recipes.columns import Drawn
from properties.helpers.judging import evaluate, verdict_only
from properties.helpers.places import PLANTED
from properties.planted.columns import RECIPE
from properties.planted.tiny import Tiny, loss

CASE = parse("case/1 rows=5:01101,3:011:left heads=4 vocab=8 sp=4 dim=2 dtype=fp64")
# Whether each token of a row has a number, in columns of targets and in those of tokens.
TARGETS, TOKENS = ([False, True, True, False, True], [False, True, True]), ([True] * 5, [True] * 3)


def named(name: str) -> str:
    return f"{PLANTED / 'columns.py'}:{name}"


def expected() -> tuple[BatchColumn, ...]:
    """Return the columns as texts, read off the tables of single rows."""
    columns = []
    for name, column in RECIPE.columns.items():
        rows: list[tuple[str, ...]] = []
        for number, (targets, tokens) in enumerate(zip(TARGETS, TOKENS, strict=True)):
            batch = RECIPE.batch(CASE, [number], torch.device("cpu"), torch.float64)
            values = batch[name].flatten().tolist()
            shown = {"row": [True], "target": targets}.get(getattr(column, "by", ""), tokens)
            rows.append(tuple(f"{x:.3g}" if s else "" for x, s in zip(values, shown, strict=True)))
        columns.append(BatchColumn(name, isinstance(column, Drawn), tuple(rows)))
    return tuple(columns)


def first_logits(model: Any, batch: Batch) -> Tensor:
    seen: Tensor = model(batch["input_ids"], batch["position_ids"], batch["attention_mask"].bool())
    return seen[..., 0]


def test_columns_that_are_declared_alike_are_of_two_models() -> None:
    def computing(*names: str) -> Batch:
        columns = {name: computed(first_logits) for name in names}
        recipe = Recipe(Tiny, loss, columns | {"nearer": computed(first_logits, nudge=2.0**-9)})
        return recipe.batch(CASE, [0, 1], torch.device("cpu"), torch.float64)

    batch = computing("old_logps", "reference_logps")
    assert not torch.equal(batch["old_logps"], batch["reference_logps"])
    # What was declared before stays as it was.
    alone = computing("old_logps")
    assert all(torch.equal(batch[name], alone[name]) for name in alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"), [("labels_lost", Verdict.DIVERGED), ("crashes", Verdict.FAULT)]
)
def test_a_failure_has_the_columns_of_its_case(
    name: str, verdict: Verdict, pool: RankPool, tmp_path: Path
) -> None:
    failure = evaluate(CASE, named(name), pool)
    assert failure.verdict is verdict
    assert failure.inquiry.columns == expected()
    # Shrinking, which traces nothing, has them too.
    assert verdict_only(CASE, named(name), pool).inquiry.columns == failure.inquiry.columns
    place = write_bundle(failure, tmp_path)
    record = json.loads((place / RECORD).read_text())
    assert [column["name"] for column in record["columns"]] == list(RECIPE.columns)
    explanation = read_bundle(place).explanation
    (gains,) = (column.rows for column in failure.inquiry.columns if column.name == "gains")
    assert f"gains, by row: {gains[0][0]} {gains[1][0]}\n" in explanation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "columns"),
    [("labels_lost", "one"), ("gains_of_another_row", "signs"), ("gains_rounded", "drawn")],
)
def test_a_failure_shrinks_to_plain_columns_where_it_stays_and_its_line_shows_it_again(
    name: str, columns: str, pool: RankPool
) -> None:
    failure = verdict_only(CASE, named(name), pool)
    assert failure.verdict is Verdict.DIVERGED
    small = shrink(failure, lambda case: verdict_only(case, named(name), pool)).smallest
    assert small.case.columns == columns
    again = evaluate(parse(str(small.case)), named(name), pool)
    assert (again.verdict, again.inquiry.columns) == (small.verdict, small.inquiry.columns)


@pytest.mark.parametrize(
    ("candidate", "why"),
    [
        ("native-gather", "it has no recipe, so no column is drawn"),
        (f"{PLANTED / 'styles.py'}:plain_loop", "its recipe draws no column"),
    ],
)
def test_plain_columns_are_refused_where_no_column_is_drawn(
    candidate: str, why: str, pool: RankPool
) -> None:
    comparison = verdict_only(replace(CASE, columns="one"), candidate, pool)
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert comparison.reason == f"columns=one: {why}"


def test_columns_are_not_compared(pool: RankPool) -> None:
    comparison = evaluate(CASE, named("right"), pool)
    assert comparison.verdict.passed
    assert comparison.inquiry.columns == ()
    assert not any(
        "gains" in key
        for key in (*comparison.measured.uncompared, *map(str, comparison.measured.keys))
    )


@pytest.mark.slow
def test_a_column_of_several_numbers_for_a_token_is_left_out(pool: RankPool) -> None:
    teacher = f"{PLANTED / 'any_model.py'}:llama__distilled__teacher_uncut"
    failure = evaluate(CASE, teacher, pool)
    assert failure.verdict is Verdict.DIVERGED
    assert failure.inquiry.columns == ()
