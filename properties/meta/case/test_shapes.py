"""What is stated of all rows of a case: it is drawn so, or refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.case import Case, Row, parse
from harness.case.shapes import SHAPES
from harness.case.stated import InvalidField, having, read_stated, violated_limit
from harness.generation import cases
from harness.generation.small import Small
from harness.plugin.cases import named_fields

EVERY = [(name, value) for name, shape in SHAPES.items() for value in shape.values]


@given(case=cases(), stated=st.sampled_from(EVERY))
def test_a_case_that_is_given_a_shape_has_it_and_one_that_has_it_stays_as_it_is(
    case: Case, stated: tuple[str, str]
) -> None:
    name, value = stated
    shaped = having(case, {name: value})
    assert SHAPES[name].holds(shaped, value)
    assert having(shaped, {name: value}) == shaped
    if SHAPES[name].holds(case, value):
        assert shaped == case
    unchanged = {field: getattr(case, field) for field in ("sp", "dp", "micro_batches", "seed")}
    assert {field: getattr(shaped, field) for field in unchanged} == unchanged


# Replicas have up to four rows otherwise, so no case with groups of five is found by chance.
@given(case=cases(stated=("group=5,7", "side=left", "targets=answer")))
def test_cases_of_a_shape_are_drawn_not_picked(case: Case) -> None:
    per_micro_batch, left = divmod(len(case.rows), case.dp * case.micro_batches)
    assert left == 0
    assert per_micro_batch % 5 == 0 or per_micro_batch % 7 == 0
    assert {row.side for row in case.rows} == {"left"}
    for row in case.rows:
        prompt = row.mask[1:].rstrip("1")
        assert set(prompt) <= {"0"}
        assert row.supervised()


@pytest.mark.parametrize(
    ("line", "limits", "violated"),
    [
        ("rows=2:11,3:111,4:1111 sp=2", "group=2", "group=2"),
        ("rows=2:11,3:111,4:1111,2:01 sp=2", "group=2", ""),
        # A replica has two rows, but a micro-batch has one.
        ("rows=2:11,3:111 micro=2 sp=2", "group=2", "group=2"),
        ("rows=2:11,3:111,4:1111 sp=2", "group=2,3", ""),
        ("rows=2:11,3:111:left sp=2", "side=right", "side=right"),
        ("rows=2:11,3:111:left sp=2", "side=right,left", "side=right,left"),
        ("rows=2:11,3:100 sp=2", "targets=some", "targets=some"),
        ("rows=2:11,3:010 sp=2", "targets=some", ""),
        ("rows=2:11,3:010 sp=2", "targets=answer", "targets=answer"),
        ("rows=2:11,4:0011 sp=2", "layers=1 targets=answer", ""),
        ("rows=1:1,2:11 sp=2", "targets=some", "targets=some"),
    ],
)
def test_a_case_without_the_shape_is_outside_limits(line: str, limits: str, violated: str) -> None:
    assert violated_limit(parse(f"case/1 {line}"), limits, 2) == violated


def test_ids_that_are_stated_stay_unless_a_row_gets_longer() -> None:
    case = parse("case/1 rows=2:10,3:100 ids=[1,2],[3,4,5] sp=2 vocab=8")
    longer = having(case, {"group": "4", "targets": "answer"})
    assert longer.ids == ((1, 2), (3, 4, 5)) * 2
    assert [row.mask for row in longer.rows] == ["11", "101"] * 2
    single = replace(case, rows=(case.rows[0], Row("1")), ids=((1, 2), (3,)))
    assert having(single, {"targets": "some"}).ids is None


def test_of_all_small_batches_those_without_the_shape_are_left_out() -> None:
    every = Small(tokens=4, sps=(1, 2), dps=(1,), max_ranks=2, losses=("token-mean",))
    stated = replace(every, stated=("group=2", "targets=answer", "side=right"))
    whole = list(every.cases(0, len(every)))
    kept = [case for case in whole if not violated_limit(case, " ".join(stated.stated), 2)]
    assert list(stated.cases(0, len(stated))) == kept
    assert 0 < len(kept) < len(whole) / 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("targets=all", "targets=all: use one of some, answer"),
        ("group=0", "group=0: use one of 1, 2, 3, 4, 5, 6, 7, 8"),
        ("side=up", "side=up: use one of right, left"),
        ("target=answer", "target=answer: a case has no such field to be stated; near: targets"),
    ],
)
def test_a_shape_that_does_not_exist_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidField) as refused:
        read_stated(text)
    assert str(refused.value).startswith(message)


def test_a_test_that_asks_for_a_shape_names_no_value_to_be_judged_on() -> None:
    assert named_fields(stated=("group=2", "layers=1", "dtype=bf16")) == ("dtype", "layers")
