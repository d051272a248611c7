"""What a row holds reaches its own loss and nothing else, and reaches it from the past only."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from harness.case import Case
from harness.compare import agree, mean
from harness.trace import Entry, Trace
from properties.metamorphic.batches import batches, one_step
from properties.metamorphic.relation import (
    Relation,
    Run,
    Twin,
    Twins,
    all_tokens,
    tokens_of,
    twins_agree,
    with_ids,
)


@st.composite
def rewritten(draw: st.DrawFn, case: Case, row: int, start: int, stop: int) -> Case:
    """The case with other ids at these positions of a row: not one stays what it was."""
    case = with_ids(case)
    assert case.ids is not None
    size = stop - start
    shifts = draw(st.lists(st.integers(1, case.vocab - 1), min_size=size, max_size=size))
    ids = list(case.ids[row])
    for position, shift in enumerate(shifts, start):
        ids[position] = (ids[position] + shift) % case.vocab
    return replace(case, ids=(*case.ids[:row], tuple(ids), *case.ids[row + 1 :]))


def masked(case: Case, row: int, mask: str) -> Case:
    """The case with another mask on one row."""
    rows = list(case.rows)
    rows[row] = replace(rows[row], mask=mask)
    return replace(case, rows=tuple(rows))


@st.composite
def with_another_row(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(per_replica=(2, 3), lengths=(2, 6))))
    changed = draw(st.integers(0, len(case.rows) - 1))
    twin = draw(rewritten(case, changed, 0, len(case.rows[changed])))
    origins = {row: row for row in range(len(case.rows)) if row != changed}
    return Twins(case, (Twin(twin, tokens_of(twin, case, origins), whole=False, exact=True),))


@st.composite
def with_another_mask(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(lengths=(3, 6))))
    row = draw(st.integers(0, len(case.rows) - 1))
    old = case.rows[row].mask
    turned = draw(st.sets(st.integers(0, len(old) - 1), min_size=1))
    mask = "".join("01"[(bit == "1") != (t in turned)] for t, bit in enumerate(old))
    # What a candidate reports for a token that does not count is its own affair.
    mine = {case.offsets[row] + t - 1 for t in turned}
    tokens = {n: origin for n, origin in all_tokens(case).items() if n not in mine}
    return Twins(case, (Twin(masked(case, row, mask), tokens, whole=False, exact=True),))


@st.composite
def with_another_future(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(lengths=(3, 8))))
    row = draw(st.integers(0, len(case.rows) - 1))
    t = draw(st.integers(2, len(case.rows[row]) - 1))
    twin = draw(rewritten(case, row, t, t + 1))
    # Token t - 1 is the last that has not seen the change; what it must predict did change.
    past = range(case.offsets[row], case.offsets[row] + t - 1)
    return Twins(case, (Twin(twin, {token: token for token in past}, whole=False, exact=True),))


@st.composite
def with_other_first_bits(draw: st.DrawFn) -> Twins:
    case = draw(batches())
    others = [replace(row, mask="10"[int(row.mask[0])] + row.mask[1:]) for row in case.rows]
    return Twins(case, (Twin(replace(case, rows=tuple(others)), all_tokens(case), exact=True),))


@st.composite
def with_another_tail(draw: st.DrawFn) -> Twins:
    case = draw(batches(lengths=(2, 6)))
    row = draw(st.integers(0, len(case.rows) - 1))
    length = len(case.rows[row])
    start = draw(st.integers(1, length - 1))
    case = masked(case, row, case.rows[row].mask[:start] + "0" * (length - start))
    return Twins(case, (Twin(draw(rewritten(case, row, start, length)), {}, exact=True),))


def one_by_one(run: Run, case: Case) -> str:
    """A single target has its own token's loss, and the mean over all targets is the whole."""
    targets = [(row, t) for row, r in enumerate(case.rows) for t in range(1, len(r))]
    blank = replace(case, rows=tuple(replace(r, mask="0" * len(r)) for r in case.rows))
    singles = [
        masked(blank, row, "0" * t + "1" + "0" * (len(case.rows[row]) - t - 1))
        for row, t in targets
    ]
    full, *parts = run(case, *singles)
    seen = Trace()
    losses = np.array([float(part["loss"].values) for part in parts])
    numbers = np.array([case.offsets[row] + t - 1 for row, t in targets])
    seen.put("nll", Entry(losses, numbers))
    everything = mean(parts)
    found = agree(full.only(["nll"]).renumbered(all_tokens(case)), seen) or agree(
        full.only(everything), everything
    )
    return found and f"{found}\n  {case}"


@st.composite
def fully_supervised(draw: st.DrawFn) -> Case:
    case = one_step(draw(batches(per_replica=(1, 2), lengths=(2, 4), losses=("token-mean",))))
    return replace(case, rows=tuple(replace(row, mask="1" * len(row)) for row in case.rows))


CONTENT = (
    Relation("a row never sees its neighbour", with_another_row(), "B56", twins_agree),
    Relation(
        "a mask decides what counts and not what is computed",
        with_another_mask(),
        "B71c",
        twins_agree,
    ),
    Relation("no loss knows a token after the next", with_another_future(), "B16", twins_agree),
    Relation(
        "the first token of a row is no target",
        with_other_first_bits(),
        "B84",
        twins_agree,
    ),
    Relation(
        "what comes after the last target is never learned",
        with_another_tail(),
        "B88",
        twins_agree,
    ),
    Relation("targets count one by one", fully_supervised(), "B22", one_by_one),
)
