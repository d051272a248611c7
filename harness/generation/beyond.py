"""Cases beyond the usual sizes, for bugs that no smaller case can show.

Each kind takes a usual case and makes one or two things of it large, so that it costs little more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import prod
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from harness.case import Case, InvalidCase
from harness.generation.drawing import draw_cases
from harness.generation.strategies import cases, rows, with_stated
from harness.plan import plan

# Kernels cut rows into blocks of 64 or 128. The first lengths are whole blocks, the others are
# one token off them, or anything else.
_WHOLE_BLOCKS = (256, 384)
_OTHER_LENGTHS = (191, 193, 255, 257, 319, 321, 383, 385, *range(130, 401, 15))
_ROWS = 24
_HEADS = 16
# The largest product of layers, heads and head dim.
_WIDEST = 768
_LAYERS = 4
_STEPS = 3
_VOCAB = 257
Fields = dict[str, Any]
Enlarge = Callable[[st.DrawFn, Case], Fields]


def long_rows(draw: st.DrawFn, case: Case) -> Fields:
    """Make rows that fill several blocks of a kernel."""
    others = max(case.dp, draw(st.sampled_from((2, 1)))) - 1
    lengths = [
        draw(st.sampled_from(_WHOLE_BLOCKS)),
        *draw(st.lists(st.sampled_from(_OTHER_LENGTHS), min_size=others, max_size=others)),
    ]
    steps = draw(st.sampled_from((1, 1, 1, 2)))
    return {
        "rows": tuple(draw(rows(min_length=n, max_length=n)) for n in lengths),
        "vocab": _VOCAB,
        "micro_batches": draw(st.integers(1, len(lengths) // case.dp)),
        "layers": draw(st.sampled_from((1, 1, 2))),
        "window": draw(st.sampled_from((None, None, None, 140))),
        **_steps(case, steps),
    }


def many_rows(draw: st.DrawFn, _case: Case) -> Fields:
    """Make so many rows that their number has two digits."""
    batch = tuple(draw(st.lists(rows(max_length=6), min_size=_ROWS, max_size=_ROWS)))
    return {"rows": batch, "micro_batches": draw(st.sampled_from((1, 2))), "layers": 1}


def in_between(draw: st.DrawFn, case: Case) -> Fields:
    """Make several things larger than usual, but smaller than the other kinds do."""
    rows_per_replica = draw(st.sampled_from((1, 2, 3, 10, 14)))
    least, most = (3, 20) if rows_per_replica > 3 else (13, 129)
    count = min(rows_per_replica * case.dp, _ROWS)
    row = rows(min_length=least, max_length=most)
    kv_heads = case.sp * draw(st.sampled_from((1, 3, 5, 7)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3)))
    if heads > _HEADS:
        # Each rank is sent all weights, and more heads make them too large.
        reject()
    return {
        "rows": tuple(draw(row) for _ in range(count - count % case.dp)),
        "micro_batches": draw(st.integers(1, min(rows_per_replica, 3))),
        "kv_heads": kv_heads,
        "heads": heads,
        "head_dim": draw(st.sampled_from((8, 12, 16))),
        "layers": draw(st.sampled_from((1, 2, 3))),
        "vocab": draw(st.sampled_from((32, 65, 128))),
        "window": draw(st.sampled_from((None, None, 9, 16, 33, 99))),
        "pad_id": draw(st.sampled_from((0, 3))),
    }


def two_at_once(draw: st.DrawFn, case: Case) -> Fields:
    """Combine two kinds, unless the model becomes too wide."""
    one, other = draw(st.sampled_from([*combinations(_COMBINABLE, 2)]))
    fields: Fields = one(draw, case) | other(draw, case)
    size = fields.get("layers", case.layers) * fields.get("heads", case.heads)
    if size * fields.get("head_dim", case.head_dim) > _WIDEST:
        reject()
    return fields


def wide_heads(head_dim: int) -> Enlarge:
    """Return a kind with a head dim that real models have."""

    def enlarge(draw: st.DrawFn, case: Case) -> Fields:
        heads_per_rank, layers = draw(st.sampled_from(((1, 1), (2, 1), (1, 2))))
        kv_heads = draw(st.sampled_from((case.sp, 1)))
        heads = case.sp * heads_per_rank
        return {"head_dim": head_dim, "heads": heads, "kv_heads": kv_heads, "layers": layers}

    return enlarge


def odd_heads(kv_heads: int, steps: int) -> Enlarge:
    """Return a kind with a number of kv heads that is no power of two, for one step or several."""

    def enlarge(draw: st.DrawFn, case: Case) -> Fields:
        heads = kv_heads * draw(st.sampled_from((1, 2)))
        return {"kv_heads": kv_heads, "heads": heads, **_steps(case, steps)}

    return enlarge


def many_layers(_draw: st.DrawFn, _case: Case) -> Fields:
    """Add layers that are neither the first nor the last."""
    return {"layers": _LAYERS, "vocab": _VOCAB}


def several_steps(_draw: st.DrawFn, case: Case) -> Fields:
    """Make three steps: a third may differ from a second."""
    return _steps(case, _STEPS)


def as_usual(_draw: st.DrawFn, _case: Case) -> Fields:
    """Change nothing: only the mesh of these cases is rare."""
    return {}


def _steps(case: Case, steps: int) -> Fields:
    # A tied model takes such large steps that half precision cannot follow them.
    return {"steps": steps, "tied": case.tied and steps == 1}


# A case may combine two of these. The second one overrides fields of the first, so the smaller
# change comes later.
_COMBINABLE = (long_rows, many_rows, in_between, wide_heads(64), many_layers, several_steps)


def draw_beyond(
    seed: int,
    first: int,
    *,
    sps: Sequence[int],
    dps: Sequence[int],
    rare_sps: Sequence[int],
    rare_dps: Sequence[int],
    min_ranks: int,
    max_ranks: int,
    stated: Sequence[str],
    **usual: Any,
) -> Iterator[Case]:
    """Yield a case of each kind in turn, from kind `first` on, without end.

    A kind is left out if no mesh fits it or its cases are used up.
    """
    # A sequence that ranks do not share shows little.
    all_sps, sps = sps, tuple(sp for sp in sps if sp > 1) or sps
    ranks = {"min_ranks": min_ranks, "max_ranks": max_ranks}
    # Wide heads make large weights, which each rank sends.
    smallest = _smallest_mesh(sps, dps, **ranks)
    kinds: list[tuple[Enlarge, Sequence[int], Sequence[int]]] = [
        (long_rows, sps, dps),
        (odd_heads(3, 1), _sps_for(3, all_sps, rare_sps), dps),
        (wide_heads(64), *smallest),
        (as_usual, rare_sps[-1:], dps),
        (many_rows, sps, dps),
        (odd_heads(5, _STEPS), _sps_for(5, all_sps, rare_sps), dps),
        (as_usual, sps, rare_dps),
        (wide_heads(128), *smallest),
        (many_layers, sps, dps),
        (in_between, sps, dps),
        (two_at_once, sps, dps),
    ]
    streams = [
        draw_cases(
            _large_cases(enlarge, tuple(stated), sps=kind_sps, dps=kind_dps, **ranks, **usual),
            seed + number,
        )
        for number, (enlarge, kind_sps, kind_dps) in enumerate(kinds)
        if _smallest_mesh(kind_sps, kind_dps, **ranks)[0]
    ]
    first %= max(len(streams), 1)
    streams = streams[first:] + streams[:first]
    while streams:
        for stream in list(streams):
            case = next(stream, None)
            if case is None:
                streams.remove(stream)
            else:
                yield case


def _smallest_mesh(
    sps: Sequence[int], dps: Sequence[int], min_ranks: int, max_ranks: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the sp and the dp of the smallest mesh that fits; empty sequences if none does."""
    fitting = [(sp, dp) for sp, dp in product(sps, dps) if min_ranks <= sp * dp <= max_ranks]
    sp, dp = min(fitting, key=prod, default=(0, 0))
    return ((sp,), (dp,)) if fitting else ((), ())


def _sps_for(kv_heads: int, sps: Sequence[int], rare_sps: Sequence[int]) -> Sequence[int]:
    """Return an sp that can share so many kv heads: the same number, or else one."""
    return next(((sp,) for sp in (kv_heads, 1) if sp in (*rare_sps, *sps)), ())


@st.composite
def _large_cases(
    draw: st.DrawFn, /, enlarge: Enlarge, stated: Sequence[str], **usual: Any
) -> Case:
    usual_case = draw(cases(**usual, max_rows=2, max_steps=1))
    try:
        case = replace(usual_case, ids=None, **enlarge(draw, usual_case))
    except InvalidCase:
        reject()
    if stated:
        case = draw(with_stated(case, tuple(stated)))
    if case.sp > 1 and not plan(case).live_boundary_labels(case):
        # There are few of these cases, so each should be able to show something.
        reject()
    return case
