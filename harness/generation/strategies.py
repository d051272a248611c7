"""Hypothesis strategies for cases, which are valid by construction and shrink to simple ones.

    @given(case=cases(sps=(2, 4)))
    def test_my_path_equals_plain_training(case):
        steer(case)
        ...

The simplest case is one short row, all supervised, one layer, sp 2. Choices that lead into a
situation occur several times in a list that is drawn from, so that they are drawn more often.

The time depends on the number of draws, not on how much each draws. So strategies are cached, and
choices that need not shrink independently are one draw.
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
from harness.case.stated import having, read_stated
from harness.generation.situations import situations_of
from harness.plan import plan

DTYPES: tuple[Dtype, ...] = ("fp64",)
LOSSES: tuple[LossContract, ...] = ("token-mean", "micro-mean", "row-mean")
MODELS: tuple[Model, ...] = ("llama",)
KERNELS: tuple[Kernel, ...] = ("eager", "sdpa")
WRAPPERS: tuple[Wrapper, ...] = ("none",)

# Kinds of masks: all tokens, an answer after a prompt, holes, one target at the very end, none.
_MASKS = ("all", "all", "answer", "answer", "holes", "holes", "last", "none")
_SIDES: tuple[Side, ...] = ("right", "right", "left")
_WINDOWS = (None, None, None, None, 1, 2, 3, 4, 6, 8)
_SEEDS = st.integers(0, 1 << 16)
_HEAD_DIMS = (4, 2, 8)
# In a model of fewer than eight hidden dims the rounding of half precision often outweighs whole
# gradients, which then cannot be judged.
_HALF_DTYPES = ("bf16", "fp16")
_HALF_HEAD_DIMS = (8, 12)


def rows(*, min_length: int = 1, max_length: int = 12) -> st.SearchStrategy[Row]:
    """Draw one ragged row: fully supervised, a prompt and an answer, with holes, or no target."""
    return _rows(min_length, max_length)


def meshes(
    *,
    sps: Sequence[int] = (2, 1, 3, 4),
    dps: Sequence[int] = (1, 2),
    max_ranks: int | None = None,
) -> st.SearchStrategy[tuple[int, int]]:
    """Draw a pair (sp, dp) that fits a pool."""
    return _meshes(tuple(sps), tuple(dps), 1, max_ranks)


def models(
    sp: int, *, max_layers: int = 2, dtype: Dtype = "fp64"
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw model fields of a case that `sp` ranks can share, and that `dtype` can judge."""
    return _models(sp, max_layers, _HALF_HEAD_DIMS if dtype in _HALF_DTYPES else _HEAD_DIMS)


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
    """Draw any case within the bounds; `max_rows` is for one replica.

    With other `wrappers` than none, `sync` is drawn too, and in half precision also `mixed`. A
    field that is `stated`, as in "window=none" or "layers=1,2", gets one of these values.
    """
    sp, dp = draw(_meshes(tuple(sps), tuple(dps), min_ranks, max_ranks))
    rows_per_replica = draw(_integers(1, max_rows))
    row = _rows(1, max_length)
    batch = tuple([draw(row) for _ in range(dp * rows_per_replica)])
    micro_batches = draw(_integers(1, rows_per_replica)) if rows_per_replica > 1 else 1
    loss, dtype = draw(_sampled_from(tuple(product(losses, dtypes))))
    fields = draw(models(sp, max_layers=max_layers, dtype=dtype))
    has_twins, extras = draw(_extras(max_steps))
    if "steps" in extras and dtype in _HALF_DTYPES:
        # A tied model takes such large steps that half precision cannot follow them.
        fields["tied"] = False
    if tuple(kernels) != KERNELS:
        extras = extras | {"kernel": draw(_sampled_from(tuple(kernels)))}
    if tuple(architectures) != MODELS:
        extras = extras | {"model": draw(_sampled_from(tuple(architectures)))}
    if tuple(wrappers) != WRAPPERS:
        extras = extras | draw(_wrappings(tuple(wrappers), dtype in _HALF_DTYPES))
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
    return with_twins(case) if has_twins else case


def steer(case: Case) -> None:
    """Make Hypothesis, inside a test, look for cases that are in many situations at once."""
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
    # Do not cache this: a cache takes 1 and True for the same value, a case does not.
    fields = {name: draw(st.sampled_from(values)) for name, values in map(read_stated, stated)}
    try:
        return having(case, fields)
    except InvalidCase:
        reject()


@cache
def _rows(min_length: int, max_length: int) -> st.SearchStrategy[Row]:
    if not 1 <= min_length <= max_length:
        raise ValueError(f"min_length={min_length}, max_length={max_length}: a row has a token")
    shapes = st.sampled_from(tuple(product(_MASKS, _SIDES)))
    lengths = _integers(min_length, max_length)

    @st.composite
    def row(draw: st.DrawFn) -> Row:
        shape, side = draw(shapes)
        length = draw(lengths)
        if shape == "answer":
            prompt = draw(_integers(0, length))
            return Row("0" * prompt + "1" * (length - prompt), side)
        if shape == "holes":
            # The drawn bits are the tokens that are *not* supervised: zero is the simplest.
            all_bits = (1 << length) - 1
            return Row(f"{all_bits ^ draw(_integers(0, all_bits)):0{length}b}", side)
        if shape == "last":
            return Row("0" * (length - 1) + "1", side)
        return Row(("1" if shape == "all" else "0") * length, side)

    return row()


@cache
def _meshes(
    sps: tuple[int, ...], dps: tuple[int, ...], min_ranks: int, max_ranks: int | None
) -> st.SearchStrategy[tuple[int, int]]:
    most = math.inf if max_ranks is None else max_ranks
    fitting = [(sp, dp) for dp in dps for sp in sps if min_ranks <= sp * dp <= most]
    if not fitting:
        raise ValueError(
            f"min_ranks={min_ranks} max_ranks={max_ranks}: no mesh of sps={sps} and dps={dps} fits"
        )
    return st.sampled_from(fitting)


@cache
def _models(
    sp: int, max_layers: int, head_dims: tuple[int, ...]
) -> st.SearchStrategy[dict[str, Any]]:
    # Pairs of kv heads and heads: each rank has kv heads of its own, or several ranks share one.
    split = [(sp * own, sp * own * queries) for own in (1, 2) for queries in (1, 2)]
    shared = [(n, sp * per_rank) for n in range(1, sp) if sp % n == 0 for per_rank in (1, 2)]
    return st.builds(
        _model,
        st.sampled_from((*split, *split, *shared)),
        st.sampled_from(tuple(product(head_dims, (16, 5, 32), (False, True)))),
        _integers(1, max_layers),
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
    """Draw whether two rows are equal, and fields that rarely differ from their defaults."""
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
def _wrappings(wrappers: tuple[Wrapper, ...], is_half: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the wrapper that reduces gradients, when it does, and whether parameters are fp32."""
    choices = product(wrappers, get_args(Sync), (False, True) if is_half else (False,))
    return st.sampled_from(
        [{"wrapper": wrapper, "sync": sync, "mixed": mixed} for wrapper, sync, mixed in choices]
    )


@cache
def _integers(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


@cache
def _sampled_from(choices: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)
