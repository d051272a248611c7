"""What must cross between ranks follows from who holds which token, and from nothing else."""

from itertools import product

import numpy as np
import pytest
import torch

from harness.candidates import locate
from harness.case import Case, parse
from harness.compare import compare
from harness.compare.least_traffic import holder_of_all, least_sent
from harness.ranks.pool import RankPool
from harness.reference import reference
from harness.trace import Assembly, Entry, Kind, Trace
from harness.verdict import Verdict
from properties.helpers.judging import evaluate
from properties.helpers.places import ROOT
from properties.meta.compare.test_layouts import BENIGN

VACUOUS, UNSEEN = (ROOT / "properties" / "planted" / f"{n}.py" for n in ("vacuous", "unseen"))
# What is said of each.
SHARES_NOTHING = {
    "COMPUTES_ALL": "sent 0 bytes, and attention over the rows that are cut",
    "ALL_TO_ALL_FOR_SHOW": "sent 32 bytes, and attention over the rows that are cut",
    "SUMS_FOR_SHOW": "sent 0 bytes, and attention over the rows that are cut",
    "CALLS_A_LOT": "the ranks of replica 0 sent 0 bytes",
    "ONE_HOLDS_ALL": "rank 0 of replica 0 holds all 8 tokens",
}
SHORT = {
    *product(SHARES_NOTHING, ("none",)),
    *product(("COMPUTES_ALL",), ("ddp", "fsdp")),
}
# Two dims for each of two heads: four bytes by eight, times what crosses.
MODEL = "heads=2/2 layers=1 dim=2"
KEY = 4 * 8
QUERY = 2 * KEY


def held(*owners: int) -> Entry:
    return Entry(np.ones(len(owners)), np.arange(len(owners)), np.array(owners))


@pytest.mark.parametrize(
    ("fields", "owners", "least"),
    [
        # The last token predicts nothing, and need not attend.
        ("rows=6:111111 sp=2", (0, 0, 0, 1, 1, 1), 3 * KEY),
        ("rows=6:111111 sp=2", (0, 0, 0, 0, 1, 1), 1 * QUERY),
        ("rows=6:111111 sp=2", (0, 0, 0, 0, 0, 1), 0),
        ("rows=6:111111 sp=2", (0, 1, 0, 1, 0, 1), 4 * KEY),
        ("rows=6:111111 sp=2 window=2", (0, 0, 0, 1, 1, 1), 1 * KEY),
        ("rows=6:111111 sp=2 window=1", (0, 0, 0, 1, 1, 1), 0),
        ("rows=6:111100 sp=2", (0, 0, 0, 1, 1, 1), 0),
        ("rows=6:000000 sp=2", (0, 0, 0, 1, 1, 1), 0),
        ("rows=3:111,3:111 sp=2", (0, 0, 0, 1, 1, 1), 0),
        ("rows=6:111111 sp=2 dtype=fp32", (0, 0, 0, 1, 1, 1), 3 * KEY // 2),
        ("rows=6:111111 sp=2 dtype=bf16", (0, 0, 0, 1, 1, 1), 3 * KEY // 4),
    ],
)
def test_at_least_the_keys_or_the_queries_cross(
    fields: str, owners: tuple[int, ...], least: int
) -> None:
    assert least_sent(parse(f"case/1 {fields} {MODEL}"), 0, held(*owners)) == least


def test_every_layer_attends_and_every_replica_for_itself() -> None:
    case = parse("case/1 rows=6:111111,4:1111 heads=2/2 layers=3 dim=2 sp=2 dp=2")
    nll = held(0, 0, 0, 1, 1, 1, 2, 2, 3, 3)
    assert [least_sent(case, replica, nll) for replica in (0, 1)] == [9 * KEY, 3 * QUERY]


@pytest.mark.parametrize(
    ("sent", "verdict"),
    [
        ((3 * KEY, 0), Verdict.EQUAL),
        ((KEY, 2 * KEY), Verdict.EQUAL),
        ((3 * KEY - 1, 0), Verdict.FAULT),
        ((0, 0), Verdict.FAULT),
    ],
)
def test_one_byte_less_than_attention_needs_is_a_fault(
    sent: tuple[int, ...], verdict: Verdict
) -> None:
    case = parse(f"case/1 rows=6:111111 sp=2 {MODEL}")
    truth = reference(case, torch.float64)
    trace = Trace()
    for key in truth:
        entry = truth[key]
        trace.put(key, entry if entry.tokens is None else of_all_tokens(entry, 6))
    assembly = Assembly(trace, local_rows=(3, 3), sent=sent)
    comparison = compare(case, "planted", truth, [truth], assembly)
    assert comparison.verdict is verdict


def of_all_tokens(entry: Entry, count: int) -> Entry:
    """As ranks have it, the first half of it on one and the second on the other."""
    values = np.zeros((count, *entry.values.shape[1:]), entry.values.dtype)
    values[entry.tokens] = entry.values
    return Entry(values, np.arange(count), np.arange(count) * 2 // count)


@pytest.mark.parametrize(
    ("rows", "owners", "holder"),
    [
        ("rows=4:1111", (0, 0, 0, 0), 0),
        ("rows=4:1111", (0, 0, 0, 1), None),
        # Too short for each rank to have some of it.
        ("rows=3:111", (0, 0, 0), None),
        ("rows=1:1,1:1,4:1111", (1, 1, 1, 1, 1, 1), 1),
    ],
)
def test_one_rank_that_holds_all_shares_nothing(
    rows: str, owners: tuple[int, ...], holder: int | None
) -> None:
    assert holder_of_all(parse(f"case/1 {rows} sp=2"), 0, held(*owners)) == holder


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        each if each in SHORT else pytest.param(*each, marks=pytest.mark.long)
        for each in product(SHARES_NOTHING, ("none", "ddp", "fsdp"))
    ],
)
def test_a_step_that_computes_everything_everywhere_is_vacuous(
    name: str, wrapper: str, harness_pool: RankPool
) -> None:
    case = parse(f"case/1 rows=8:11111111 sp=2 layers=2 wrapper={wrapper}")
    comparison = evaluate(case, f"{VACUOUS}:{name}", harness_pool)
    assert comparison.verdict is Verdict.FAULT
    assert comparison.fault
    assert comparison.fault.kind is Kind.VACUOUS
    assert SHARES_NOTHING[name] in comparison.fault.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "BROADCASTS",
        "WRAPPED",
        "REDUCES_TO_ONE",
        "GATHERS_GRADIENTS",
        "GATHERS_SHARES",
        "AMONG_ONE",
    ],
)
def test_what_is_sent_of_a_model_or_to_nobody_is_no_attention(
    name: str, harness_pool: RankPool
) -> None:
    # Its weights have as many rows as a rank has tokens, and as all have.
    for rows in ("5:11111", "8:11111111", "16:1111111111111111"):
        case = parse(f"case/1 rows={rows} heads=4/2 dim=2 sp=2 layers=2")
        assert sends_nothing(case, name, harness_pool)


def test_what_goes_to_another_replica_is_no_attention(harness_pool: RankPool) -> None:
    case = parse("case/1 rows=8:11111111,8:11111111 sp=2 dp=2 layers=2")
    assert sends_nothing(case, "WITH_OTHER_REPLICAS", harness_pool)


def sends_nothing(case: Case, name: str, pool: RankPool) -> bool:
    """Whether it is vacuous, and nothing else is wrong with it."""
    comparison = evaluate(case, f"{VACUOUS}:{name}", pool)
    assert comparison.fault, comparison.verdict
    return "sent 0 bytes, and attention over" in comparison.fault.summary


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["none", "ddp", "fsdp"])
def test_keys_of_the_shape_of_a_weight_are_keys_also_beside_all_weights(
    wrapper: str, harness_pool: RankPool
) -> None:
    candidate = f"{ROOT / 'properties' / 'planted' / 'layouts.py'}:KEYS_AS_TABLES"
    for tokens in (8, 16, 32):
        rows = f"{tokens}:{'1' * tokens}"
        case = parse(f"case/1 rows={rows} heads=4/4 dim=2 sp=2 layers=2 wrapper={wrapper}")
        assert evaluate(case, candidate, harness_pool).verdict.passed


@pytest.mark.slow
def test_what_torch_does_not_carry_is_seen_where_the_step_says_so(harness_pool: RankPool) -> None:
    for sp in (2, 4):
        case = parse(f"case/1 rows=9:111111111,4:0111 sp={sp} layers=2")
        assert evaluate(case, f"{UNSEEN}:SAYS_SO", harness_pool).verdict.passed
        comparison = evaluate(case, f"{UNSEEN}:SILENT", harness_pool)
        assert comparison.fault is not None
        assert comparison.fault.kind is Kind.VACUOUS
        assert comparison.fault.summary.endswith("does not know carried it; then emit 'sent'")


@pytest.mark.slow(but=4)
@pytest.mark.parametrize("candidate", BENIGN)
@pytest.mark.parametrize("sp", [2, 3, 4])
def test_whatever_the_layout_and_the_collective_what_is_shared_is_seen(
    candidate: str, sp: int, harness_pool: RankPool
) -> None:
    case = parse(f"case/1 rows=9:111111111,4:0111 sp={sp} heads=12/12 layers=2")
    outcome = harness_pool.run(case, locate(candidate))
    assert isinstance(outcome, Assembly)
    assert sum(outcome.sent) >= least_sent(case, 0, outcome.trace["nll"]) > 0
