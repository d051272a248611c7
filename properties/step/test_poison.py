"""What must not matter does not: memory nobody wrote, padding, and the tail of the stream."""

import pytest
from hypothesis import given, settings

from harness.case import Case, parse
from harness.compare import identical
from harness.generation import cases
from harness.ranks.pool import RankPool
from properties.helpers.asking import ask, few, mutant, probe

# Ragged on both sides, and neither sp=2 nor sp=4 divides the tokens.
CASE = parse("case/1 rows=4:1111,1:1:left,6:011011 heads=4/2 vocab=16 sp=4")
TWINS = {
    f"{what}-{dialect}": (f"native-{dialect}", probe(f"{what.upper()}_{dialect.upper()}"))
    for what in ("nan", "huge", "padding", "tail")
    for dialect in ("gather", "local")
}


def difference(case: Case, usual: str, changed: str, pool: RankPool) -> str:
    """Where losses of real tokens, loss or gradients depend on what was changed, or nothing."""
    one, other = ask(pool, [(case, usual), (case, changed)])
    return identical(one.trace, other.trace)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("usual", "changed"), TWINS.values(), ids=TWINS)
@settings(few, max_examples=few.max_examples // 2)
@given(case=cases(max_ranks=4, max_length=8))
def test_what_nobody_wrote_and_what_no_token_owns_changes_no_bit(
    harness_pool: RankPool, usual: str, changed: str, case: Case
) -> None:
    assert difference(case, usual, changed, harness_pool) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("usual", "changed", "where", "ours"),
    [
        ("UNWRITTEN_TAIL", "POISONED_TAIL", "loss: ", "nan-local"),
        ("UNWRITTEN_GRADIENT", "POISONED_GRADIENT", "grad.", "huge-local"),
        ("MASK_FROM_IDS", "MASK_FROM_GARBAGE", "labels: ", "padding-local"),
        ("COUNTS_TAIL", "COUNTS_OTHER_TAIL", "loss: ", "tail-local"),
    ],
)
def test_a_step_that_reads_them_is_found_on_a_case_where_ours_does_not(
    harness_pool: RankPool, usual: str, changed: str, where: str, ours: str
) -> None:
    assert difference(CASE, *TWINS[ours], harness_pool) == ""
    told = difference(CASE, mutant(usual), mutant(changed), harness_pool)
    assert told.startswith(where)
