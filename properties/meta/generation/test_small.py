"""Every small batch is there once, and what is left out makes no difference."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from typing import Any

import pytest
import torch

from harness.case import Case, LossContract, Row, Side
from harness.generation import Small
from harness.reference import reference

ALL = Small(tokens=4, sps=(1, 2), dps=(1, 2), max_ranks=3, losses=("token-mean",))
SIDES: tuple[Side, ...] = ("right", "left")


def every_batch(tokens: int) -> Iterator[tuple[Row, ...]]:
    """Yield all batches with every bit and every side, without any thought of what it changes."""
    for count in range(1, tokens + 1):
        for lengths in product(range(1, tokens + 1), repeat=count):
            if sum(lengths) == tokens:
                kinds = (
                    [
                        Row("".join(bits), side)
                        for bits in product("01", repeat=n)
                        for side in SIDES
                    ]
                    for n in lengths
                )
                yield from product(*kinds)


def everything(small: Small) -> Iterator[Case]:
    """Yield every case of these sizes that is valid, with a window of 2 and without."""
    fields: Any
    for tokens in range(1, small.tokens + 1):
        ids = range(tokens)
        for rows, sp, dp in product(every_batch(tokens), small.sps, small.dps):
            if sp * dp > small.max_ranks or len(rows) % dp:
                continue
            numbered = iter([*ids[1:], 0])
            fields = {
                "rows": rows,
                "ids": tuple(tuple(next(numbered) for _ in row.mask) for row in rows),
                "sp": sp,
                "dp": dp,
                "heads": 4 * sp,
                "head_dim": 4,
                "vocab": small.tokens + 1,
            }
            micro_batches = range(1, len(rows) // dp + 1)
            kv_heads = {1, sp, 2 * sp}
            for micro, kv, loss, window in product(
                micro_batches, kv_heads, small.losses, (None, 2)
            ):
                yield Case(**fields, micro_batches=micro, kv_heads=kv, loss=loss, window=window)


def simplified(case: Case) -> Case:
    """Return the case that stands for this one: equal but for what can make no difference."""
    longest = max(map(len, case.rows))
    rows = tuple(
        Row("1" + row.mask[1:], "right" if len(row) == longest else row.side) for row in case.rows
    )
    return replace(case, rows=rows, window=case.window if longest > 3 else None)


def test_each_batch_is_there_once_but_for_what_makes_no_difference() -> None:
    drawn = list(ALL.cases(0, len(ALL)))
    assert len(drawn) == len({*drawn}) == len(ALL)
    assert {*drawn} == {simplified(case) for case in everything(ALL)}


def test_each_loss_is_there_with_each_batch() -> None:
    losses: tuple[LossContract, ...] = ("token-mean", "micro-mean", "row-mean")
    three = replace(ALL, losses=losses)
    assert len(three) == 3 * len(ALL)
    assert {replace(case, loss="token-mean") for case in three.cases(0, len(three))} == {
        *ALL.cases(0, len(ALL))
    }


def test_small_batches_come_first_and_any_part_of_them_can_be_had_alone() -> None:
    drawn = list(ALL.cases(0, len(ALL)))
    assert [case.tokens for case in drawn] == sorted(case.tokens for case in drawn)
    parts = [case for start in range(0, len(ALL), 100) for case in ALL.cases(start, start + 100)]
    assert parts == drawn


def test_ids_differ_and_the_last_is_that_of_padding() -> None:
    for case in ALL.cases(0, len(ALL)):
        assert case.ids is not None
        flat = [number for row in case.ids for number in row]
        assert sorted(flat) == list(range(case.tokens))
        assert flat[-1] == case.pad_id


def test_kv_heads_are_below_at_and_above_sp_and_several_heads_share_each() -> None:
    kinds = replace(ALL, tokens=1, sps=(1, 2, 3, 4), max_ranks=4)
    found = {(case.sp, case.kv_heads) for case in kinds.cases(0, len(kinds))}
    assert found == {
        *((1, 1), (1, 2)),
        *((2, 1), (2, 2), (2, 4)),
        *((3, 1), (3, 3), (3, 6)),
        *((4, 1), (4, 2), (4, 4), (4, 8)),
    }
    assert all(case.heads == 4 * case.sp for case in kinds.cases(0, len(kinds)))


@pytest.mark.slow
def test_what_is_left_out_makes_no_difference_to_plain_training() -> None:
    sizes = replace(ALL, sps=(1,), dps=(1,), losses=("micro-mean",))
    kept: dict[Case, Any] = {}
    compared = 0
    # Every fifth is enough: five is no divisor of how many a batch has.
    for case in islice(everything(sizes), 0, None, 5):
        other = simplified(case)
        if other == case or case.kv_heads > 1:
            continue
        if other not in kept:
            kept[other] = reference(other, torch.float64)
        left_out = reference(case, torch.float64)
        assert [*left_out] == [*kept[other]]
        for key in left_out:
            assert (left_out[key].values == kept[other][key].values).all(), (case, key)
        compared += 1
    assert compared > 100


def test_a_stated_value_replaces_what_is_varied_and_what_it_does_not_allow_is_left_out() -> None:
    stated = replace(ALL, stated=("micro=2", "window=none", "layers=1,2"))
    drawn = list(stated.cases(0, len(stated)))
    assert {case.micro_batches for case in drawn} == {2}
    assert {case.window for case in drawn} == {None}
    assert {case.layers for case in drawn} == {1, 2}
    assert min(len(case.rows) // case.dp for case in drawn) == 2
    assert len(drawn) == len({*drawn}) == len(stated)
