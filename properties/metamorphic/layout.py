"""Relations about layout: order, padding, micro-batches and the mesh do not matter."""

from dataclasses import replace

from hypothesis import strategies as st

from harness.case import Case, Row, Side
from harness.plan import plan
from properties.metamorphic.batches import REGROUPABLE, batches
from properties.metamorphic.relation import (
    Relation,
    Twin,
    Twins,
    all_tokens,
    arranged,
    tokens_of,
    twins_agree,
)

OTHER: dict[Side, Side] = {"right": "left", "left": "right"}


@st.composite
def reordered(draw: st.DrawFn) -> Twins:
    case = draw(batches(per_replica=(2, 4)))
    groups = [list(range(len(case.rows)))]
    if case.loss == "micro-mean":
        # Rows must stay in their micro-batches, whose means are averaged.
        groups = [[span.row for span in stream.spans] for stream in plan(case).streams]
    order = list(range(len(case.rows)))
    for group in groups:
        for slot, row in zip(group, draw(st.permutations(group)), strict=True):
            order[slot] = row
    twin = arranged(case, order)
    return Twins(case, (Twin(twin, tokens_of(twin, case, dict(enumerate(order)))),))


@st.composite
def flipped(draw: st.DrawFn) -> Twins:
    case = draw(batches(per_replica=(2, 3)))
    turned = draw(st.sets(st.integers(0, len(case.rows) - 1), min_size=1))
    rows = [
        replace(row, side=OTHER[row.side]) if r in turned else row
        for r, row in enumerate(case.rows)
    ]
    return Twins(case, (Twin(replace(case, rows=tuple(rows)), all_tokens(case)),))


@st.composite
def widened(draw: st.DrawFn) -> Twins:
    case = draw(batches(losses=("token-mean",)))
    count, longest = len(case.rows), max(len(row) for row in case.rows)
    # The first mask bit may be either: a first token never counts as a target.
    mask = draw(st.sampled_from("01")) + "0" * (longest + draw(st.integers(0, 2)))
    spare = [(Row(mask, draw(st.sampled_from(list(OTHER)))), (case.pad_id,) * len(mask))] * case.dp
    present = [(case.rows[row], case.ids_of(row)) for row in range(count)]
    # Each replica gets one new row, so that the other rows stay in their replicas.
    at = case.dp * draw(st.integers(0, count // case.dp))
    batch = present[:at] + spare + present[at:]
    twin = replace(case, rows=tuple(row for row, _ in batch), ids=tuple(ids for _, ids in batch))
    origins = {row + case.dp * (row >= at): row for row in range(count)}
    return Twins(case, (Twin(twin, tokens_of(twin, case, origins)),))


@st.composite
def padded_otherwise(draw: st.DrawFn) -> Twins:
    case = draw(batches())
    # Take an id that occurs in the batch: code that recognises padding by its id loses this token.
    token_id = draw(
        st.sampled_from([token for row in range(len(case.rows)) for token in case.ids_of(row)])
    )
    pad_id = (token_id + 1) % case.vocab if token_id == case.pad_id else token_id
    return Twins(case, (Twin(replace(case, pad_id=pad_id), all_tokens(case), is_exact=True),))


@st.composite
def regrouped(draw: st.DrawFn) -> Twins:
    case = draw(batches(per_replica=(2, 4), losses=REGROUPABLE))
    most = len(case.rows) // case.dp
    other = (case.micro_batches + draw(st.integers(0, most - 2))) % most + 1
    return Twins(case, (Twin(replace(case, micro_batches=other), all_tokens(case)),))


@st.composite
def doubled(draw: st.DrawFn) -> Twins:
    case = draw(batches())
    rows = range(len(case.rows))
    if case.loss == "micro-mean":
        # Both copies are in one micro-batch, or each in its own.
        case, pieces = replace(case, micro_batches=1), draw(st.integers(1, 2))
    else:
        pieces = draw(st.integers(1, 2 * len(rows) // case.dp))
    twin = arranged(case, [*rows, *rows], micro_batches=pieces)
    origins = {row: row % len(rows) for row in range(2 * len(rows))}
    return Twins(case, (Twin(twin, tokens_of(twin, case, origins)),))


def on_meshes(case: Case, *meshes: tuple[int, int]) -> Twins:
    """Put the same batch on meshes with other numbers of replicas and of ranks for each."""
    tokens = all_tokens(case)
    others = (replace(case, dp=dp, sp=sp) for dp, sp in meshes)
    return Twins(case, tuple(Twin(other, tokens) for other in others))


@st.composite
def refactored(draw: st.DrawFn) -> Twins:
    # Two ranks can share heads that four can share, and four replicas get equal numbers of rows.
    per_replica = draw(st.integers(1, 2))
    rows = 4 * per_replica
    case = draw(batches(per_replica=(rows, rows), losses=REGROUPABLE, sps=(4,), dps=(1,)))
    case = replace(case, micro_batches=draw(st.integers(1, per_replica)))
    return on_meshes(case, (2, 2), (4, 1))


@st.composite
def among_fewer(draw: st.DrawFn) -> Twins:
    return on_meshes(draw(batches(sps=(4,), dps=(1,))), (1, 2), (1, 1))


@st.composite
def resharded(draw: st.DrawFn) -> Twins:
    case = draw(batches(per_replica=(1, 2), lengths=(1, 8), sps=(1,), dps=(1,)))
    # Every sp divides 24. Any number of kv heads between 1 and 24 would not fit all of them.
    kv_heads = draw(st.sampled_from((24, 1)))
    case = replace(case, heads=24, kv_heads=kv_heads, head_dim=2)
    return on_meshes(case, (1, 2), (1, 3), (1, 4), (1, 8))


LAYOUT = (
    Relation("rows may come in any order", reordered(), "B18", twins_agree),
    Relation("padding may go to either side", flipped(), "B08", twins_agree),
    Relation(
        "an unsupervised row adds padding and nothing else",
        widened(),
        "B83",
        twins_agree,
    ),
    Relation("the pad id is a number like any other", padded_otherwise(), "B23", twins_agree),
    Relation("micro-batches may be split and joined", regrouped(), "B74", twins_agree),
    Relation("a batch twice is a batch", doubled(), "B89", twins_agree),
    Relation("four ranks may be replicas or peers", refactored(), "B118", twins_agree),
    Relation("rows may be split among fewer ranks", among_fewer(), "B122", twins_agree),
)
RESHARDED = Relation("any number of ranks computes the same", resharded(), "B14", twins_agree)
