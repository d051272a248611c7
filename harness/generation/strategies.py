"""Hypothesis strategies for cases: valid by construction, shrinking towards the boring.

    @given(case=cases(sps=(2, 4)))
    def test_my_path_equals_plain_training(case):
        steer(case)
        ...

The simplest case is one short row, all supervised, one layer, sp 2. Choices that lead into
a situation stand more than once in what is drawn from; `harness.generation.situations` counts how
often each situation is reached.

What costs time is the number of draws, not their width: strategies are made once, and choices
that need not shrink apart from each other are one draw.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, get_args

from hypothesis import reject, target
from hypothesis import strategies as st

from harness.case import (
    Case,
    Dtype,
    InvalidCase,
    Kernel,
    LossContract,
    Model,
    Row,
    Side,
    Sync,
    Wrapper,
)
from harness.case.stated import read_stated
from harness.generation.situations import situations_of
from harness.plan import plan

DTYPES: tuple[Dtype, ...] = ("fp64",)
LOSSES: tuple[LossContract, ...] = ("token-mean", "micro-mean", "row-mean")
MODELS: tuple[Model, ...] = ("llama",)
KERNELS: tuple[Kernel, ...] = ("eager", "sdpa")
WRAPPERS: tuple[Wrapper, ...] = ("none",)

# How a mask comes about: an answer after a prompt, holes, one target at the very end, none.
_MASKS = ("all", "all", "answer", "answer", "holes", "holes", "last", "none")
_SIDES: tuple[Side, ...] = ("right", "right", "left")
_WINDOWS = (None, None, None, None, 1, 2, 3, 4, 6, 8)
_SEEDS = st.integers(0, 1 << 16)
_HEAD_DIMS = (4, 2, 8)
# In a model of fewer than eight hidden dims the rounding of a half precision often outweighs whole
# gradients, and then nobody can judge it.
_HALVES = ("bf16", "fp16")
_HEAD_DIMS_OF_HALVES = (8, 12)


def rows(*, min_length: int = 1, max_length: int = 12) -> st.SearchStrategy[Row]:
    """One ragged row: fully supervised, a prompt and an answer, holes, or nothing at all."""
    return _rows(min_length, max_length)


def meshes(
    *,
    sps: Sequence[int] = (2, 1, 3, 4),
    dps: Sequence[int] = (1, 2),
    max_ranks: int | None = None,
) -> st.SearchStrategy[tuple[int, int]]:
    """(sp, dp) that fit a pool."""
    return _meshes(tuple(sps), tuple(dps), 1, max_ranks)


def models(
    sp: int, *, max_layers: int = 2, dtype: Dtype = "fp64"
) -> st.SearchStrategy[dict[str, Any]]:
    """Model fields of a case that `sp` ranks can share, and that can be judged in `dtype`."""
    return _models(sp, max_layers, _HEAD_DIMS_OF_HALVES if dtype in _HALVES else _HEAD_DIMS)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    sps: Sequence[int] = (2, 1, 3, 4),
    dps: Sequence[int] = (1, 2),
    min_ranks: int = 1,
    max_ranks: int | None = None,
    dtypes: Sequence[Dtype] = DTYPES,
    losses: Sequence[LossContract] = LOSSES,
    kernels: Sequence[Kernel] = KERNELS,
    wrappers: Sequence[Wrapper] = WRAPPERS,
    architectures: Sequence[Model] = MODELS,
    stated: Sequence[str] = (),
    max_rows: int = 4,
    max_length: int = 12,
    max_layers: int = 2,
    max_steps: int = 2,
) -> Case:
    """Any case within the bounds; `max_rows` is for one replica.

    With other `wrappers` than none also `sync` is drawn, and `mixed` in half precision. A field
    that is `stated`, as in "window=none" or "layers=1,2", has one of these values.
    """
    sp, dp = draw(_meshes(tuple(sps), tuple(dps), min_ranks, max_ranks))
    per_replica = draw(_whole(1, max_rows))
    row = _rows(1, max_length)
    batch = tuple([draw(row) for _ in range(dp * per_replica)])
    micro_batches = draw(_whole(1, per_replica)) if per_replica > 1 else 1
    loss, dtype = draw(_one_of(tuple(product(losses, dtypes))))
    fields = draw(models(sp, max_layers=max_layers, dtype=dtype))
    twins, extras = draw(_extras(max_steps))
    if "steps" in extras and dtype in _HALVES:
        # Steps of a tied model are so large that half precisions lose track of it.
        fields["tied"] = False
    if tuple(kernels) != KERNELS:
        extras = extras | {"kernel": draw(_one_of(tuple(kernels)))}
    if tuple(architectures) != MODELS:
        extras = extras | {"model": draw(_one_of(tuple(architectures)))}
    if tuple(wrappers) != WRAPPERS:
        extras = extras | draw(_around(tuple(wrappers), dtype in _HALVES))
    case = Case(
        rows=batch,
        sp=sp,
        dp=dp,
        micro_batches=micro_batches,
        loss=loss,
        dtype=dtype,
        seed=draw(_SEEDS),
        **fields,
        **extras,
    )
    if stated:
        case = draw(with_stated(case, tuple(stated)))
    return with_twins(case) if twins else case


def steer(case: Case) -> None:
    """Tell Hypothesis, inside a test, to look for cases that are in many situations at once."""
    target(float(len(situations_of(case))), label="situations met at once")
    target(
        float(plan(case).live_boundary_labels(case)),
        label="loss terms with a label on the next rank",
    )


def with_twins(case: Case) -> Case:
    """Make the last row of the first stream a copy of the first."""
    spans = plan(case).streams[0].spans
    first, last = spans[0].row, spans[-1].row
    origins = [first if row == last else row for row in range(len(case.rows))]
    return replace(
        case,
        rows=tuple(case.rows[row] for row in origins),
        ids=tuple(case.ids_of(row) for row in origins),
    )


@st.composite
def with_stated(draw: st.DrawFn, case: Case, stated: tuple[str, ...]) -> Case:
    """Set each stated field to one of its values, if there is such a case."""
    # Not cached: one is as good as true to a cache, and not to a case.
    fields = {name: draw(st.sampled_from(values)) for name, values in map(read_stated, stated)}
    try:
        return replace(case, **fields)
    except InvalidCase:
        reject()


@cache
def _rows(min_length: int, max_length: int) -> st.SearchStrategy[Row]:
    if not 1 <= min_length <= max_length:
        raise ValueError(f"min_length={min_length}, max_length={max_length}: a row has a token")
    shapes = st.sampled_from(tuple(product(_MASKS, _SIDES)))
    lengths = _whole(min_length, max_length)

    @st.composite
    def row(draw: st.DrawFn) -> Row:
        shape, side = draw(shapes)
        length = draw(lengths)
        if shape == "answer":
            prompt = draw(_whole(0, length))
            return Row("0" * prompt + "1" * (length - prompt), side)
        if shape == "holes":
            # One bit for each token that is *not* supervised: fewer of them is simpler.
            every = (1 << length) - 1
            return Row(f"{every ^ draw(_whole(0, every)):0{length}b}", side)
        if shape == "last":
            return Row("0" * (length - 1) + "1", side)
        return Row(("1" if shape == "all" else "0") * length, side)

    return row()


@cache
def _meshes(
    sps: tuple[int, ...], dps: tuple[int, ...], min_ranks: int, max_ranks: int | None
) -> st.SearchStrategy[tuple[int, int]]:
    every = [(sp, dp) for dp in dps for sp in sps]
    most = math.inf if max_ranks is None else max_ranks
    fitting = [(sp, dp) for sp, dp in every if min_ranks <= sp * dp <= most]
    if not fitting:
        raise ValueError(
            f"min_ranks={min_ranks} max_ranks={max_ranks}: no mesh of sps={sps} and dps={dps} fits"
        )
    return st.sampled_from(fitting)


@cache
def _models(
    sp: int, max_layers: int, head_dims: tuple[int, ...]
) -> st.SearchStrategy[dict[str, Any]]:
    # Every rank has kv heads of its own, or several ranks share one; then queries to a kv head.
    split = [(sp * own, sp * own * queries) for own in (1, 2) for queries in (1, 2)]
    shared = [(n, sp * per_rank) for n in range(1, sp) if sp % n == 0 for per_rank in (1, 2)]
    return st.builds(
        _model,
        st.sampled_from((*split, *split, *shared)),
        st.sampled_from(tuple(product(head_dims, (16, 5, 32), (False, True)))),
        _whole(1, max_layers),
        st.sampled_from(_WINDOWS),
    )


def _model(
    heads: tuple[int, int], shape: tuple[int, int, bool], layers: int, window: int | None
) -> dict[str, Any]:
    return {
        "kv_heads": heads[0],
        "heads": heads[1],
        "head_dim": shape[0],
        "vocab": shape[1],
        "tied": shape[2],
        "layers": layers,
        "window": window,
    }


@cache
def _extras(max_steps: int) -> st.SearchStrategy[tuple[bool, dict[str, Any]]]:
    """Whether two rows are equal, and what is rarely turned on."""
    steps = range(2, max_steps + 1)
    usual: list[tuple[bool, dict[str, Any]]] = [(False, {}), (False, {"kernel": "sdpa"})]
    unusual: list[tuple[bool, dict[str, Any]]] = [
        (False, {"checkpoint": True}),
        (False, {"checkpoint": True, "kernel": "sdpa"}),
        (False, {"pad_id": 3}),
        (True, {}),
        *((False, {"steps": n}) for n in steps),
        *((True, {"steps": n, "checkpoint": True, "pad_id": 1}) for n in steps),
    ]
    return st.sampled_from([*usual * 4, *unusual])


@cache
def _around(wrappers: tuple[Wrapper, ...], half: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the wrapper that reduces gradients, when it does, and whether parameters are fp32."""
    choices = product(wrappers, get_args(Sync), (False, True) if half else (False,))
    return st.sampled_from(
        [{"wrapper": wrapper, "sync": sync, "mixed": mixed} for wrapper, sync, mixed in choices]
    )


@cache
def _whole(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


@cache
def _one_of(choices: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)
