"""Samplers: peers draw the same rows, replicas different ones, and together they draw all rows.

Most tests need only the sampler and the arithmetic of the mesh; one runs real ranks.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.candidates import locate
from harness.candidates.own.native.rows import sampler
from harness.case import parse
from harness.rank_program.mesh import groups, mesh_position
from harness.ranks.pool import RankPool
from harness.trace import Assembly
from properties.helpers.places import PLANTED

EPOCHS = range(3)
# With 20 rows for each replica, two epochs have equal orders for fewer than one in 10^18 seeds.
ENOUGH = 20
PROBES = PLANTED / "probes.py"


@dataclass(frozen=True, slots=True)
class Plan:
    """A dataset on a mesh."""

    rows: range
    dp: int
    sp: int
    shuffle: bool
    drop_last: bool
    seed: int = 0


# draw(plan, index, epoch) -> the rows that a rank draws in an epoch.
Draw = Callable[[Plan, int, int], list[int]]


def draw_rows(plan: Plan, index: int, epoch: int) -> list[int]:
    """Draw the rows of a rank as the native step does."""
    dp_index, _ = mesh_position(index, plan.sp)
    return list(
        sampler(
            plan.rows,
            plan.dp,
            dp_index,
            shuffle=plan.shuffle,
            drop_last=plan.drop_last,
            epoch=epoch,
            seed=plan.seed,
        )
    )


def first_violation(plan: Plan, draw: Draw) -> str:
    """Return the first violated claim about which rank gets which rows, or ""."""
    return next(violations(plan, draw), "")


def violations(plan: Plan, draw: Draw) -> Iterator[str]:
    sp_groups, _ = groups(plan.dp, plan.sp)
    size, orders = len(plan.rows), []
    # Only as many rows may be dropped or repeated as it takes to make the shares equal.
    even = size - size % plan.dp if plan.drop_last else size + -size % plan.dp
    for epoch in EPOCHS:
        held = [[draw(plan, index, epoch) for index in group] for group in sp_groups]
        if any(one != other for peers in held for one, other in pairwise(peers)):
            yield "peers of one sequence hold different rows"
        shares = [peers[0] for peers in held]
        if {len(share) for share in shares} != {even // plan.dp}:
            yield "more rows are dropped or repeated than it takes"
        times = Counter(row for share in shares for row in share)
        if not set(times) <= set(range(size)):
            yield "rows that the dataset does not have"
        if len(times) < min(size, even):
            yield "a row went to two replicas instead of another one"
        orders.append(shares)
    equal_orders = [one == other for one, other in pairwise(orders)]
    if not plan.shuffle and not all(equal_orders):
        yield "the order changes without shuffling"
    if plan.shuffle and size >= ENOUGH * plan.dp and any(equal_orders):
        yield "two epochs have the same order"


plans = st.builds(
    Plan,
    # 200 and 1000 are the sizes in the notebook.
    (st.integers(1, 150) | st.sampled_from((200, 1000))).map(range),
    st.integers(1, 5),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 32),
)


@given(plan=plans)
def test_peers_share_rows_replicas_divide_them_and_epochs_differ(plan: Plan) -> None:
    assert first_violation(plan, draw_rows) == ""


@pytest.mark.parametrize("mesh", ["sp=2 dp=2", "sp=4", "sp=1 dp=3"])
@pytest.mark.parametrize("size", [1000, 23])
def test_real_ranks_draw_what_the_arithmetic_says(
    harness_pool: RankPool, mesh: str, size: int
) -> None:
    case = parse(f"case/1 rows={','.join(['1:1'] * 12)} heads=4/4 {mesh}")
    outcome = harness_pool.run(case, locate(locate(f"{PROBES}:DRAWS_{size}").full), traced=True)
    assert isinstance(outcome, Assembly), outcome
    for shuffle in (False, True):
        for drop_last in (False, True):

            def on_rank(plan: Plan, index: int, epoch: int) -> list[int]:
                options = f"shuffle={plan.shuffle} drop_last={plan.drop_last} epoch={epoch}"
                rows: list[int] = outcome.trace[f"{options} rank={index}"].values.tolist()
                return rows

            plan = Plan(range(size), case.dp, case.sp, shuffle, drop_last)
            assert first_violation(plan, on_rank) == ""


def by_global_rank(plan: Plan, index: int, epoch: int) -> list[int]:
    """B125: the sampler is keyed by the global rank."""
    return draw_rows(plan, index % plan.dp * plan.sp, epoch)


def by_world(plan: Plan, index: int, epoch: int) -> list[int]:
    """B125: every rank counts as a replica."""
    return draw_rows(replace(plan, dp=plan.dp * plan.sp, sp=1), index, epoch)


def own_seed(plan: Plan, index: int, epoch: int) -> list[int]:
    """B125: every rank shuffles by a seed of its own."""
    return draw_rows(replace(plan, seed=index), index, epoch)


def seed_of_replica(plan: Plan, index: int, epoch: int) -> list[int]:
    """Every replica shuffles by a seed of its own: peers agree, and replicas share rows."""
    return draw_rows(replace(plan, seed=index // plan.sp), index, epoch)


def no_epoch(plan: Plan, index: int, _epoch: int) -> list[int]:
    """The sampler never learns of a new epoch."""
    return draw_rows(plan, index, 0)


def rest_dropped(plan: Plan, index: int, epoch: int) -> list[int]:
    """The remainder is dropped although `drop_last` is off."""
    return draw_rows(replace(plan, drop_last=True), index, epoch)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (by_global_rank, "peers of one sequence hold different rows"),
        (by_world, "peers of one sequence hold different rows"),
        (own_seed, "peers of one sequence hold different rows"),
        (seed_of_replica, "a row went to two replicas instead of another one"),
        (no_epoch, "two epochs have the same order"),
        (rest_dropped, "more rows are dropped or repeated than it takes"),
    ],
)
def test_a_sampler_that_deals_wrongly_is_found(draw: Draw, message: str) -> None:
    plan = Plan(range(61), dp=2, sp=2, shuffle=True, drop_last=False)
    assert first_violation(plan, draw_rows) == ""
    assert first_violation(plan, draw) == message
