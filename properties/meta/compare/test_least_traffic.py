"""Steps that send less than attention needs are vacuous, whatever their layout and collectives."""

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
# Candidates that share nothing, with a part of the message about each.
SHARES_NOTHING = {
    "COMPUTES_ALL": "sent 0 bytes, and attention over the rows that are cut",
    "ALL_TO_ALL_FOR_SHOW": "sent 32 bytes, and attention over the rows that are cut",
    "SUMS_FOR_SHOW": "sent 0 bytes, and attention over the rows that are cut",
    "CALLS_A_LOT": "the ranks of replica 0 sent 0 bytes",
    "ONE_HOLDS_ALL": "rank 0 of replica 0 holds all 8 tokens",
}
# The combinations of candidate and wrapper that are no long tests.
SHORT = {
    *product(SHARES_NOTHING, ("none",)),
    *product(("COMPUTES_ALL",), ("ddp", "fsdp")),
}
# Two heads of two dims: a hidden state has four numbers of eight bytes. A key may be sent as a
# hidden state; a query is sent, and its result comes back.
MODEL = "heads=2/2 layers=1 dim=2"
KEY = 4 * 8
QUERY = 2 * KEY


def nll_of(*owners: int) -> Entry:
    """Return an `nll` whose tokens have these owners."""
    return Entry(np.ones(len(owners)), np.arange(len(owners)), np.array(owners))


@pytest.mark.parametrize(
    ("fields", "owners", "least"),
    [
        # The last token predicts nothing, so it need not attend.
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
def test_ranks_must_send_at_least_all_keys_or_all_queries(
    fields: str, owners: tuple[int, ...], least: int
) -> None:
    assert least_sent(parse(f"case/1 {fields} {MODEL}"), 0, nll_of(*owners)) == least


def test_every_layer_of_every_replica_counts_separately() -> None:
    case = parse("case/1 rows=6:111111,4:1111 heads=2/2 layers=3 dim=2 sp=2 dp=2")
    nll = nll_of(0, 0, 0, 1, 1, 1, 2, 2, 3, 3)
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
    oracle = reference(case, torch.float64)
    trace = Trace()
    for key in oracle:
        entry = oracle[key]
        trace.put(key, entry if entry.tokens is None else split_over_two_ranks(entry, 6))
    assembly = Assembly(trace, local_rows=(3, 3), sent=sent)
    comparison = compare(case, "planted", oracle, [oracle], assembly)
    assert comparison.verdict is verdict


def split_over_two_ranks(entry: Entry, count: int) -> Entry:
    """Return an entry with all tokens, the first half on rank 0 and the second on rank 1."""
    values = np.zeros((count, *entry.values.shape[1:]), entry.values.dtype)
    values[entry.tokens] = entry.values
    return Entry(values, np.arange(count), np.arange(count) * 2 // count)


@pytest.mark.parametrize(
    ("rows", "owners", "holder"),
    [
        ("rows=4:1111", (0, 0, 0, 0), 0),
        ("rows=4:1111", (0, 0, 0, 1), None),
        # The row is so short that a correct layout may leave a rank empty.
        ("rows=3:111", (0, 0, 0), None),
        ("rows=1:1,1:1,4:1111", (1, 1, 1, 1, 1, 1), 1),
    ],
)
def test_a_rank_that_holds_all_tokens_of_a_long_row_is_found(
    rows: str, owners: tuple[int, ...], holder: int | None
) -> None:
    assert holder_of_all(parse(f"case/1 {rows} sp=2"), 0, nll_of(*owners)) == holder


@pytest.mark.slow(but=2)
@pytest.mark.parametrize(
    ("name", "wrapper"),
    [
        pair if pair in SHORT else pytest.param(*pair, marks=pytest.mark.long)
        for pair in product(SHARES_NOTHING, ("none", "ddp", "fsdp"))
    ],
)
def test_a_step_that_does_not_share_the_sequence_is_vacuous(
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
def test_sending_weights_or_sending_to_no_other_rank_does_not_count_as_attention(
    name: str, harness_pool: RankPool
) -> None:
    # The weights have as many rows as one rank has tokens, or as all ranks have.
    for rows in ("5:11111", "8:11111111", "16:1111111111111111"):
        case = parse(f"case/1 rows={rows} heads=4/2 dim=2 sp=2 layers=2")
        assert has_sent_nothing(case, name, harness_pool)


def test_sending_to_another_replica_does_not_count_as_attention(harness_pool: RankPool) -> None:
    case = parse("case/1 rows=8:11111111,8:11111111 sp=2 dp=2 layers=2")
    assert has_sent_nothing(case, "WITH_OTHER_REPLICAS", harness_pool)


def has_sent_nothing(case: Case, name: str, pool: RankPool) -> bool:
    """Return whether the fault of a candidate is that its ranks sent nothing."""
    comparison = evaluate(case, f"{VACUOUS}:{name}", pool)
    assert comparison.fault, comparison.verdict
    return "sent 0 bytes, and attention over" in comparison.fault.summary


@pytest.mark.slow
@pytest.mark.parametrize("wrapper", ["none", "ddp", "fsdp"])
def test_keys_that_have_the_shape_of_a_weight_count_as_attention(
    wrapper: str, harness_pool: RankPool
) -> None:
    candidate = f"{ROOT / 'properties' / 'planted' / 'layouts.py'}:KEYS_AS_TABLES"
    for tokens in (8, 16, 32):
        rows = f"{tokens}:{'1' * tokens}"
        case = parse(f"case/1 rows={rows} heads=4/4 dim=2 sp=2 layers=2 wrapper={wrapper}")
        assert evaluate(case, candidate, harness_pool).verdict.passed


@pytest.mark.slow
def test_traffic_outside_torch_counts_if_the_step_emits_its_bytes(harness_pool: RankPool) -> None:
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
def test_traffic_is_counted_in_every_layout_and_collective(
    candidate: str, sp: int, harness_pool: RankPool
) -> None:
    case = parse(f"case/1 rows=9:111111111,4:0111 sp={sp} heads=12/12 layers=2")
    outcome = harness_pool.run(case, locate(candidate))
    assert isinstance(outcome, Assembly)
    assert sum(outcome.sent) >= least_sent(case, 0, outcome.trace["nll"]) > 0
