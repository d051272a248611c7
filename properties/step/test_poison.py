"""Uninitialised memory, padding and the tail of the stream do not matter."""

import pytest
from hypothesis import given, settings

from harness.case import Case, parse
from harness.compare import identical
from harness.generation import cases
from harness.ranks.pool import RankPool
from properties.helpers.asking import fewer_examples, planted_probe, planted_step, run_all

# Ragged on both sides, and neither sp=2 nor sp=4 divides the tokens.
CASE = parse("case/1 rows=4:1111,1:1:left,6:011011 heads=4/2 vocab=16 sp=4")
TWINS = {
    f"{source}-{dialect}": (
        f"native-{dialect}",
        planted_probe(f"{source.upper()}_{dialect.upper()}"),
    )
    for source in ("nan", "huge", "padding", "tail")
    for dialect in ("gather", "local")
}


def difference(case: Case, usual: str, changed: str, pool: RankPool) -> str:
    """Return where two candidates differ in losses of real tokens, loss or gradients, or ""."""
    one, other = run_all(pool, [(case, usual), (case, changed)])
    return identical(one.trace, other.trace)


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("usual", "changed"), TWINS.values(), ids=TWINS)
@settings(fewer_examples, max_examples=fewer_examples.max_examples // 2)
@given(case=cases(max_ranks=4, max_length=8))
def test_uninitialised_memory_and_padding_change_no_bit(
    harness_pool: RankPool, usual: str, changed: str, case: Case
) -> None:
    assert difference(case, usual, changed, harness_pool) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("usual", "changed", "where", "native"),
    [
        ("UNWRITTEN_TAIL", "POISONED_TAIL", "loss: ", "nan-local"),
        ("UNWRITTEN_GRADIENT", "POISONED_GRADIENT", "grad.", "huge-local"),
        ("MASK_FROM_IDS", "MASK_FROM_GARBAGE", "labels: ", "padding-local"),
        ("COUNTS_TAIL", "COUNTS_OTHER_TAIL", "loss: ", "tail-local"),
    ],
)
def test_a_step_that_reads_memory_or_padding_is_found(
    harness_pool: RankPool, usual: str, changed: str, where: str, native: str
) -> None:
    assert difference(CASE, *TWINS[native], harness_pool) == ""
    found = difference(CASE, planted_step(usual), planted_step(changed), harness_pool)
    assert found.startswith(where)
