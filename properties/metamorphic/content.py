"""Relations about content: a token affects its own row only, and only what comes after it."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from harness.case import Case
from harness.compare import agree, total
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
    """Change every id at these positions of a row."""
    case = with_ids(case)
    assert case.ids is not None
    size = stop - start
    shifts = draw(st.lists(st.integers(1, case.vocab - 1), min_size=size, max_size=size))
    ids = list(case.ids[row])
    for position, shift in enumerate(shifts, start):
        ids[position] = (ids[position] + shift) % case.vocab
    return replace(case, ids=(*case.ids[:row], tuple(ids), *case.ids[row + 1 :]))


def masked(case: Case, row: int, mask: str) -> Case:
    """Give one row of a case another mask."""
    rows = list(case.rows)
    rows[row] = replace(rows[row], mask=mask)
    return replace(case, rows=tuple(rows))


@st.composite
def with_another_row(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(per_replica=(2, 3), lengths=(2, 6))))
    changed = draw(st.integers(0, len(case.rows) - 1))
    twin = draw(rewritten(case, changed, 0, len(case.rows[changed])))
    origins = {row: row for row in range(len(case.rows)) if row != changed}
    return Twins(
        case, (Twin(twin, tokens_of(twin, case, origins), is_whole=False, is_exact=True),)
    )


@st.composite
def with_another_mask(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(lengths=(3, 6))))
    row = draw(st.integers(0, len(case.rows) - 1))
    old = case.rows[row].mask
    turned = draw(st.sets(st.integers(0, len(old) - 1), min_size=1))
    mask = "".join("01"[(bit == "1") != (t in turned)] for t, bit in enumerate(old))
    # A candidate may report any loss for a token that does not count in one of the two cases.
    left_out = {case.offsets[row] + t - 1 for t in turned}
    tokens = {n: origin for n, origin in all_tokens(case).items() if n not in left_out}
    return Twins(case, (Twin(masked(case, row, mask), tokens, is_whole=False, is_exact=True),))


@st.composite
def with_another_future(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(lengths=(3, 8))))
    row = draw(st.integers(0, len(case.rows) - 1))
    t = draw(st.integers(2, len(case.rows[row]) - 1))
    twin = draw(rewritten(case, row, t, t + 1))
    # Token t - 1 is the last that does not see the change, but its label has changed.
    past = range(case.offsets[row], case.offsets[row] + t - 1)
    return Twins(
        case, (Twin(twin, {token: token for token in past}, is_whole=False, is_exact=True),)
    )


@st.composite
def with_another_past(draw: st.DrawFn) -> Twins:
    case = one_step(draw(batches(lengths=(5, 8))))
    window = draw(st.integers(1, 3))
    case = replace(case, window=window)
    row = draw(st.integers(0, len(case.rows) - 1))
    # Each layer lets a token see one window further back; so far ahead the change has an effect.
    reach = case.layers * (window - 1)
    length = len(case.rows[row])
    t = draw(st.integers(0, length - reach - 3))
    twin = draw(rewritten(case, row, t, t + 1))
    later = range(case.offsets[row] + t + reach + 1, case.offsets[row] + length - 1)
    return Twins(
        case, (Twin(twin, {token: token for token in later}, is_whole=False, is_exact=True),)
    )


@st.composite
def with_other_first_bits(draw: st.DrawFn) -> Twins:
    case = draw(batches())
    others = [replace(row, mask="10"[int(row.mask[0])] + row.mask[1:]) for row in case.rows]
    return Twins(case, (Twin(replace(case, rows=tuple(others)), all_tokens(case), is_exact=True),))


@st.composite
def with_another_tail(draw: st.DrawFn) -> Twins:
    case = draw(batches(lengths=(2, 6)))
    row = draw(st.integers(0, len(case.rows) - 1))
    length = len(case.rows[row])
    start = draw(st.integers(1, length - 1))
    case = masked(case, row, case.rows[row].mask[:start] + "0" * (length - start))
    return Twins(case, (Twin(draw(rewritten(case, row, start, length)), {}, is_exact=True),))


def one_by_one(run: Run, case: Case) -> str:
    """A single target has the loss of its token, and the mean over all targets is the loss."""
    targets = [(row, t) for row, r in enumerate(case.rows) for t in range(1, len(r))]
    singles = [
        masked(unsupervised(case), row, "0" * t + "1" + "0" * (len(case.rows[row]) - t - 1))
        for row, t in targets
    ]
    full, *parts = run(case, *singles)
    singly = Trace()
    losses = np.array([float(part["loss"].values) for part in parts])
    numbers = np.array([case.offsets[row] + t - 1 for row, t in targets])
    singly.put("nll", Entry(losses, numbers))
    found = agree(full.only(["nll"]).renumbered(all_tokens(case)), singly)
    return f"{found}\n  {case}" if found else sum_up(case, full, parts, 1 / len(parts))


def row_by_row(run: Run, case: Case) -> str:
    """Losses and gradients of single rows, while no other row has targets, add up to the whole."""
    singles = [masked(unsupervised(case), row, r.mask) for row, r in enumerate(case.rows)]
    full, *parts = run(case, *singles)
    return sum_up(case, full, parts, 1.0)


def unsupervised(case: Case) -> Case:
    return replace(case, rows=tuple(replace(row, mask="0" * len(row)) for row in case.rows))


def sum_up(case: Case, full: Trace, parts: list[Trace], share: float) -> str:
    everything = total(parts, share)
    found = agree(full.only(everything), everything)
    return found and f"{found}\n  {case}"


@st.composite
def fully_supervised(draw: st.DrawFn) -> Case:
    case = one_step(draw(batches(per_replica=(1, 2), lengths=(2, 4), losses=("token-mean",))))
    return replace(case, rows=tuple(replace(row, mask="1" * len(row)) for row in case.rows))


@st.composite
def whole_rows(draw: st.DrawFn) -> Case:
    return one_step(draw(batches(lengths=(2, 5), losses=("row-mean",))))


@st.composite
def at_a_fork(draw: st.DrawFn) -> tuple[Case, int, int]:
    case = with_ids(one_step(draw(batches(lengths=(2, 6)))))
    row = draw(st.integers(0, len(case.rows) - 1))
    t = draw(st.integers(1, len(case.rows[row]) - 1))
    mask = case.rows[row].mask
    return masked(case, row, mask[:t] + "1" + mask[t + 1 :]), row, t


def chances_are_whole(run: Run, fork: tuple[Case, int, int]) -> str:
    """The probabilities of all possible next tokens, taken from their losses, sum to one."""
    case, row, t = fork
    assert case.ids is not None
    before, ids, after = case.ids[:row], case.ids[row], case.ids[row + 1 :]
    nexts = [
        replace(case, ids=(*before, (*ids[:t], token, *ids[t + 1 :]), *after))
        for token in range(case.vocab)
    ]
    place = case.offsets[row] + t - 1
    losses = [
        trace.only(["nll"]).renumbered({place: place})["nll"].values for trace in run(*nexts)
    ]
    whole, one = Trace(), Trace()
    whole.put("chances", Entry(np.exp(-np.concatenate(losses)).sum()))
    one.put("chances", Entry(np.array(1.0)))
    found = agree(whole, one)
    return found and f"{found}\n  row {row}, token {t} of {case}"


CONTENT = (
    Relation("a row never sees its neighbour", with_another_row(), "B56", twins_agree),
    Relation(
        "a mask decides what counts and not what is computed",
        with_another_mask(),
        "B71c",
        twins_agree,
    ),
    Relation("no loss knows a token after the next", with_another_future(), "B16", twins_agree),
    Relation("no token sees further than the window", with_another_past(), "B57", twins_agree),
    Relation("a loss is that of the next token", at_a_fork(), "B17", chances_are_whole),
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
    Relation("rows count one by one", whole_rows(), "B97", row_by_row),
)
