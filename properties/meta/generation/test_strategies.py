"""Generated cases are valid, inside their bounds, reproducible, and shrink to simple ones."""

import importlib
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from harness.case import Case, Row, Wrapper, parse
from harness.generation import cases, draw_list
from harness.generation.situations import situations_of
from harness.generation.strategies import meshes, models, rows, steer, with_twins
from harness.plan import plan

SIMPLEST = "case/1 vocab=16 sp=2 dim=4"


@given(case=cases(stated=("window=none", "layers=3,1", "model=qwen3", "steps=1", "tied=0")))
def test_a_stated_field_has_one_of_its_stated_values(case: Case) -> None:
    assert (case.window, case.model, case.steps, case.tied) == (None, "qwen3", 1, False)
    assert case.layers in (1, 3)


def test_no_case_is_drawn_if_stated_fields_allow_none() -> None:
    assert draw_list(cases(stated=("steps=1",)), 3, seed=0)
    assert draw_list(cases(stated=("mixed=1",), dtypes=("fp64",)), 3, seed=0) == []
    assert draw_list(cases(stated=("mixed=1",), dtypes=("bf16",)), 3, seed=0)


@given(
    case=cases(
        sps=(2, 8),
        dps=(1, 3),
        max_ranks=8,
        dtypes=("fp32", "bf16"),
        losses=("row-mean",),
        max_rows=2,
        max_length=5,
        max_layers=3,
        max_steps=3,
    )
)
def test_every_case_is_inside_its_bounds(case: Case) -> None:
    assert (case.sp, case.dp) in {(2, 1), (8, 1), (2, 3)}
    assert case.dtype in ("fp32", "bf16")
    assert case.loss == "row-mean"
    assert len(case.rows) <= 2 * case.dp
    assert max(len(row) for row in case.rows) <= 5
    assert case.layers <= 3
    assert case.steps <= 3
    assert case.columns == "drawn"
    assert parse(str(case)) == case


@pytest.mark.slow
def test_sync_and_mixed_are_drawn_with_wrappers_only() -> None:
    wrappers: tuple[Wrapper, ...] = ("none", "ddp", "fsdp")

    def wrappings(**bounds: Any) -> set[tuple[str, str, bool]]:
        drawn = draw_list(cases(**bounds), 200, 0)
        return {(case.wrapper, case.sync, case.mixed) for case in drawn}

    syncs = ("last", "each")
    expected = set(itertools.product(wrappers, syncs, (False, True)))
    assert wrappings(dtypes=("bf16",), wrappers=wrappers) == expected
    assert wrappings(dtypes=("fp64",), wrappers=("ddp",)) == {
        ("ddp", sync, False) for sync in syncs
    }
    assert wrappings(dtypes=("fp64", "bf16")) == {("none", "last", False)}


def test_only_the_requested_kernels_are_drawn() -> None:
    for kernels in (("varlen",), ("eager", "flash")):
        drawn = draw_list(cases(kernels=kernels, dtypes=("bf16",)), 50, 0)
        assert {case.kernel for case in drawn} == set(kernels)


@given(row=rows(min_length=3, max_length=4), mesh=meshes(sps=(3, 5), dps=(1,), max_ranks=4))
def test_a_row_and_a_mesh_are_inside_their_bounds(row: Row, mesh: tuple[int, int]) -> None:
    assert 3 <= len(row) <= 4
    assert mesh == (3, 1)


@given(st.data())
def test_every_number_of_ranks_can_share_the_models_drawn_for_it(data: st.DataObject) -> None:
    sp = data.draw(st.integers(1, 8))
    fields = data.draw(models(sp, max_layers=2))
    assert Case(rows=(Row("1"),), sp=sp, **fields).layers <= 2


def test_a_seed_gives_the_same_distinct_cases_every_time() -> None:
    once, again = (draw_list(cases(), 100, 5) for _ in range(2))
    assert once == again
    assert len(set(once)) == 100
    assert once != draw_list(cases(), 100, 6)


def test_drawing_ends_when_a_strategy_has_no_more_cases() -> None:
    few = st.sampled_from([parse(f"{SIMPLEST} rows=1:1 seed={seed}") for seed in range(7)])
    assert len(draw_list(few, 100, 0)) == 7


def test_twins_are_equal_in_mask_and_ids() -> None:
    case = with_twins(parse("case/1 rows=3:011,2:11,4:1111:left"))
    assert case.rows[0] == case.rows[2]
    assert case.ids_of(0) == case.ids_of(2)
    assert case.ids_of(1) == parse("case/1 rows=3:011,2:11").ids_of(1)


def situations_met(*, steered: bool) -> int:
    met: Counter[str] = Counter()

    @settings(max_examples=250, database=None, derandomize=True)
    @given(case=cases())
    def look(case: Case) -> None:
        if steered:
            steer(case)
        met.update(situations_of(case))

    look()
    return met.total()


@pytest.mark.slow
def test_steering_leads_into_more_situations() -> None:
    assert situations_met(steered=True) > 1.1 * situations_met(steered=False)


def test_a_seed_gives_the_same_cases_whatever_modules_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = draw_list(cases(), 100, 5)
    numbers = ", ".join(str(number) for number in range(1000, 60_000, 977))
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = [{numbers}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_numbers")
    assert draw_list(cases(), 100, 5) == before


# For each planted bug, the cases on which it fails, and the simplest of them.
PLANTED: dict[str, tuple[Callable[[Case], bool], str]] = {
    "a label lost at a cut": (
        lambda case: plan(case).live_boundary_labels(case) > 0,
        "rows=2:11 heads=2/2",
    ),
    "a tail dropped": (
        lambda case: any(stream.pad for stream in plan(case).streams),
        "rows=1:1 heads=2/2",
    ),
    "a head out of order": (lambda case: case.kv_heads >= 2 * case.sp, "rows=1:1 heads=4/4"),
    "a document that sees its neighbour": (
        lambda case: any(len(stream.spans) > 1 for stream in plan(case).streams),
        "rows=1:1,1:1 heads=2/2",
    ),
    "padding on the left": (
        lambda case: any(row.side == "left" for row in case.rows),
        "rows=1:1:left heads=2/2",
    ),
    "a second step": (lambda case: case.steps > 1, "rows=1:1 heads=2/2 steps=2"),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_a_failing_case_shrinks_to_the_simplest_one_that_fails(name: str, seed: int) -> None:
    fails, wanted = PLANTED[name]
    assert find(cases(), fails, random=Random(seed)) == parse(f"{SIMPLEST} {wanted}")
