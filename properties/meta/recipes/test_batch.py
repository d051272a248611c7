"""A batch holds the rows of a case, padded, with columns that follow their rows."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.case import Case, Columns, Row
from harness.recipes import Recipe, computed, losses, row, target, token
from harness.recipes.batch import IGNORED, rows_of
from harness.recipes.columns import Column
from harness.recipes.inside import PADDING, numbers, with_distinct_ids

CPU = torch.device("cpu")
CASE = Case(
    rows=(Row("1101"), Row("01", side="left"), Row("011"), Row("1")),
    dp=2,
    micro_batches=2,
    pad_id=3,
)
COLUMNS: dict[str, Column] = {
    "by_row": row(),
    "by_token": token(),
    "by_target": target(),
    "made": computed(lambda _, batch: batch["by_token"] * 2),
}


def model(case: Case) -> torch.nn.Module:
    return torch.nn.Embedding(case.vocab, 2)


def loss(_model: Any, _batch: Any) -> Tensor:
    raise AssertionError


RECIPE = Recipe(model, loss, COLUMNS)


def batch(rows: list[int], **options: int) -> dict[str, Tensor]:
    return RECIPE.batch(CASE, rows, CPU, torch.float64, **options)


def test_rows_are_padded_on_their_own_side_and_labels_are_targets_in_their_own_place() -> None:
    table = batch([0, 1])
    first, second = (list(CASE.ids_of(number)) for number in (0, 1))
    assert table["input_ids"].tolist() == [first, [3, 3, *second]]
    assert table["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]
    assert table["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    # A row's first token has no predecessor: it is no target, though its mask says so.
    assert table["labels"].tolist() == [
        [IGNORED, first[1], IGNORED, first[3]],
        [IGNORED, IGNORED, IGNORED, second[1]],
    ]


def test_each_row_states_its_number_its_replica_and_its_micro_batch() -> None:
    table = batch([0, 1, 2, 3])
    assert [rows_of(CASE, replica) for replica in (0, 1)] == [[[0], [2]], [[1], [3]]]
    assert table["row"].tolist() == [0, 1, 2, 3]
    assert table["replica"].tolist() == [0, 1, 0, 1]
    assert table["micro_batch"].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_follows_its_row_into_any_batch(name: str) -> None:
    whole, alone, wider = batch([0, 1, 2, 3]), batch([2]), batch([3, 2], wider=2)
    real = whole["attention_mask"][2].bool()
    for table, place in ((alone, 0), (wider, 1)):
        values = table[name][place]
        if values.ndim:
            values = values[table["attention_mask"][place].bool()]
            assert torch.equal(values, whole[name][2][real])
        else:
            assert torch.equal(values, whole[name][2])


def test_a_column_is_zero_beyond_its_tokens_and_that_of_targets_beyond_them() -> None:
    table = batch([0, 1])
    padding, others = table["attention_mask"] == 0, table["labels"] == IGNORED
    assert not table["by_token"][padding].any()
    assert table["by_token"][~padding].all()
    assert not table["by_target"][others].any()
    assert table["by_target"][~others].all()
    assert not table["made"][padding].any()


@pytest.mark.parametrize(
    ("columns", "numbers"), [("zero", {0.0}), ("one", {1.0}), ("signs", {-1.0, 1.0})]
)
def test_plain_numbers_take_the_place_of_drawn_ones_within_their_bounds(
    columns: Columns, numbers: set[float]
) -> None:
    case, declared = replace(CASE, columns=columns), {**COLUMNS, "high": row(2, 3)}
    table = Recipe(model, loss, declared).batch(case, [0, 1, 2, 3], CPU, torch.float64)
    real = table["attention_mask"].bool()
    assert set(table["by_token"][real].tolist()) == numbers
    assert not table["by_token"][~real].any()
    assert set(table["high"].tolist()) == {2.0}
    # What is computed from them stays computed.
    assert torch.equal(table["made"], 2 * table["by_token"])


def test_equal_rows_have_equal_numbers_and_others_have_others() -> None:
    twice = Case(rows=(Row("11"), Row("11")), ids=((1, 2), (1, 2)))
    table = RECIPE.batch(twice, [0, 1], CPU, torch.float64)
    assert torch.equal(table["by_token"][0], table["by_token"][1])
    assert len(set(batch([0, 1, 2, 3])["by_row"].tolist())) == 4


def test_distinct_ids_say_which_token_is_where_whatever_pads_a_row() -> None:
    other = with_distinct_ids(CASE)
    assert [other.ids_of(number) for number in range(4)] == [
        (1, 2, 3, 4),
        (5, 6),
        (7, 8, 9),
        (10,),
    ]
    held = torch.tensor([[5, 6, other.pad_id, 0]])
    assert numbers(CASE, [held])[0].tolist() == [[4, 5, PADDING, PADDING]]


def test_rows_are_paired_within_their_replica_in_whatever_order_they_are() -> None:
    batch = {"replica": torch.tensor([1, 0, 1, 0]), "row": torch.tensor([3, 0, 1, 2])}
    chosen, rejected = losses.in_pairs(batch["row"], batch)
    assert (chosen.tolist(), rejected.tolist()) == ([0, 1], [2, 3])
