"""A failure is named by its tensors: right traces that a test changes get the right name."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from harness.anomalies import ANOMALIES
from harness.candidates.own.mutants import BANK
from harness.case import Case, parse
from harness.compare import Verdict, compare
from harness.diagnosis import name_divergence, name_fault
from harness.plan import plan
from harness.reference import reference
from harness.trace import WAITS, Assembly, Entry, Fault, Kind, Trace
from properties.planted.scratch import WRONG

CASE = parse("case/1 rows=5:01111,4:0111,6:011111 heads=4/2 layers=1 vocab=16 sp=2 dp=1 seed=7")
Values = npt.NDArray[Any]
Change = Callable[[Values], Values]


def shown(case: Case, changes: dict[str, Change], only: tuple[str, ...] = ()) -> Assembly:
    """Return what a right candidate emits, changed; with `only`, these keys and all gradients."""
    trace = Trace()
    owner_n = owners(case)
    oracle = reference(case, torch.float64, traced=True)
    for key in oracle:
        entry = oracle[key]
        if only and key not in only and not key.startswith("grad."):
            continue
        values, tokens = entry.values.copy(), entry.tokens
        if key in changes:
            values = changes[key](values)
        if key == "nll" and tokens is not None:
            # Ranks emit a loss for every token.
            all_values = np.zeros(case.tokens)
            all_values[tokens] = values
            values, tokens = all_values, np.arange(case.tokens)
        trace.put(key, Entry(values, tokens, None if tokens is None else owner_n[tokens]))
    return Assembly(trace, sent=(8,) * case.ranks, local_rows=(8,) * case.ranks)


def owners(case: Case) -> Values:
    owner_n = np.zeros(case.tokens, np.int64)
    for stream in plan(case).streams:
        for span in stream.spans:
            for t in range(span.stop - span.start):
                owner = stream.replica * case.sp + stream.owner(span.start + t)
                owner_n[case.offsets[span.row] + t] = owner
    return owner_n


def names_of(
    changes: dict[str, Change], case: Case = CASE, only: tuple[str, ...] = ()
) -> list[str]:
    oracle = reference(case, torch.float64, traced=True)
    assembly = shown(case, changes, only)
    comparison = compare(case, "tampered", oracle, [oracle], assembly)
    assert comparison.verdict is Verdict.DIVERGED
    return [look.name for look in name_divergence(comparison, oracle, assembly.trace)]


def times(factor: float) -> Change:
    return lambda values: values * factor


def set_value(index: Any, value: float) -> Change:
    def change(values: Values) -> Values:
        values[index] = value
        return values

    return change


GRADIENTS = [key for key in reference(CASE, torch.float64) if key.startswith("grad.")]
Q, K, V, OUT = (f"layers.0.attn.{part}" for part in ("q", "k", "v", "out"))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"positions": lambda _: np.arange(15)}, "positions-run-on"),
        ({"positions": lambda p: np.where(np.arange(15) < 8, p, np.arange(15) - 8)},
         "positions-restarted"),
        ({"positions": lambda p: p[::-1]}, "positions-wrong"),
        ({"ids": set_value(3, 0)}, "input-replaced"),
        ({"labels": set_value(0, 99)}, "label-replaced"),
        ({OUT: lambda out: out[:, ::-1]}, "head-order"),
        ({OUT: lambda out: out * (np.arange(4) < 2)[:, None]}, "exchange-incomplete"),
        ({OUT: set_value((3, 1), np.nan)}, "non-finite"),
        ({OUT: times(1 + 1e-4)}, "unclassified"),
        ({OUT: lambda out: out.astype(np.float32).astype(np.float64)}, "low-precision"),
        ({V: times(3)}, "unclassified"),
        ({"weight": times(2)}, "gradient-times-sp"),
        ({"weight": times(-1)}, "gradient-scaled"),
        ({"weight": times(12 / 15), "loss": times(12 / 15)}, "denominator-wrong-count"),
        ({"weight": times(12 / 15)}, "gradient-scaled"),
        ({"weight": times(0), "loss": times(0)}, "mask-replaced"),
        ({"weight": times(0)}, "gradient-missing"),
        ({"weight": set_value(14, 1.0), "loss": times(2)}, "label-wrapped"),
        ({"weight": set_value(4, 1.0), "loss": times(2)}, "label-crosses-rows"),
        ({"weight": set_value(7, 0.0), "loss": times(2)}, "label-lost-at-edge"),
        ({"weight": set_value(7, 0.0)}, "gradient-partial"),
        ({"weight": lambda w: np.roll(w, 1), "loss": times(2)}, "mask-shifted"),
        ({"weight": lambda w: w * np.where(np.arange(15) < 8, 0.5, 2)}, "denominator-per-rank"),
        ({"weight": lambda w: w * np.where(np.arange(15) < 5, 0.5, 2)}, "denominator-per-part"),
        ({"loss": times(2)}, "loss-misreported"),
        ({"loss": times(np.nan)}, "non-finite"),
        (dict.fromkeys(GRADIENTS, times(2)), "gradient-times-sp"),
        (dict.fromkeys(GRADIENTS, times(0.5)), "gradient-over-sp"),
        (dict.fromkeys(GRADIENTS, times(0.7)), "denominator-wrong-count"),
        ({GRADIENTS[3]: times(0)}, "gradient-missing"),
        ({GRADIENTS[3]: times(0.5)}, "gradient-partial"),
        ({GRADIENTS[3]: lambda g: g.astype(np.float32).astype(np.float64)}, "low-precision"),
    ],
)  # fmt: skip
def test_a_failure_is_named_by_its_tensors(changes: dict[str, Change], name: str) -> None:
    assert names_of(changes)[0] == name


def test_a_wrong_loss_without_any_target_is_a_leak_of_padding() -> None:
    changes = {"loss": lambda loss: loss + 1.2, GRADIENTS[0]: lambda gradient: gradient + 0.5}
    unsupervised = parse("case/1 rows=5:00000 heads=4/2 layers=1 vocab=16 sp=2 dp=1 seed=7")
    for case, name in ((unsupervised, "pad-leak"), (CASE, "gradient-partial")):
        assert names_of(changes, case, ("nll", "loss"))[0] == name
    # A NaN is the mean of no tokens, and no sign of padding.
    nothing = {"loss": times(np.nan), GRADIENTS[0]: times(np.nan)}
    assert names_of(nothing, unsupervised, ("nll", "loss"))[0] == "non-finite"


def test_a_factor_is_named_by_the_size_of_the_mesh_that_it_equals() -> None:
    case = parse(
        "case/1 rows=5:01111,4:0111,6:011111,5:01110,4:0111,6:011111 sp=2 dp=3 vocab=16 seed=7"
    )
    found = {
        factor: names_of(dict.fromkeys(GRADIENTS, times(factor)), case)[0]
        for factor in (2, 0.5, 3, 1 / 3)
    }
    assert list(found.values()) == [
        "gradient-times-sp",
        "gradient-over-sp",
        "gradient-times-dp",
        "gradient-over-dp",
    ]


def test_labels_that_are_not_emitted_are_found_from_losses() -> None:
    oracle = reference(CASE, torch.float64, traced=True)
    logits, ids = oracle["logits"].values, oracle["ids"].values
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    tokens = oracle["nll"].tokens
    assert tokens is not None

    def of_labels(labels_n: Values) -> Change:
        return lambda _: -log_probabilities[tokens, labels_n[tokens]]

    only = ("nll", "loss")
    assert names_of({"nll": of_labels(ids)}, only=only)[0] == "label-shifted"
    local = np.concatenate((np.roll(ids[:8], -1), np.roll(ids[8:], -1)))
    assert names_of({"nll": of_labels(local)}, only=only)[0] == "label-rolled-locally"


def test_right_labels_do_not_explain_wrong_losses() -> None:
    only = ("nll", "loss")
    # In bf16 losses this close to the right ones still fit the right labels.
    case = parse(f"{CASE} dtype=bf16".replace("dtype=fp64 ", ""))
    off = {"nll": times(1.03), "loss": times(1.03)}
    assert names_of(off, case, only=only)[0] == "unclassified"


def test_the_root_comes_first_and_unexplained_names_follow() -> None:
    both = {"labels": set_value(0, 99), "loss": times(3)}
    assert names_of(both) == ["label-replaced", "loss-misreported"]


@pytest.mark.parametrize("kind", Kind)
def test_every_fault_has_a_name(kind: Kind) -> None:
    assert name_fault(Fault(kind=kind, summary="")).name in ANOMALIES


@pytest.mark.parametrize(
    ("states", "name"),
    [
        (("rank 0: is in no collective", "rank 1: gone or not answering"), "unclassified"),
        (("rank 0: waits for the other ranks to leave the previous case",), "unclassified"),
        (("rank 0: is in no collective", f"rank 1: {WAITS}send #1"), "collective-mismatch"),
    ],
)
def test_a_hang_is_a_mismatch_only_if_a_rank_waits_in_a_collective(
    states: tuple[str, ...], name: str
) -> None:
    assert name_fault(Fault(kind=Kind.HUNG, summary="", ranks=states)).name == name


def test_every_anomaly_has_a_description_and_a_cause() -> None:
    for anomaly in ANOMALIES.values():
        assert len(anomaly.looks) > 5
        assert len(anomaly.cause) > 15


def test_every_anomaly_is_the_name_of_a_mutant_or_of_a_failure_in_a_test() -> None:
    tried = {"positions-run-on", "gradient-over-dp", "unclassified", "ranks-beside"}
    # Names of candidates that are compared with themselves.
    tried |= {"weights-wrong", "shifted-after-cut"}
    # A step with a recipe that freezes parameters.
    tried |= {"frozen-trained"}
    named = {mutant.anomaly for mutant in BANK.values()} | set(WRONG.values())
    assert named | tried >= ANOMALIES.keys()
