"""The padded reference and the row-wise oracle agree, and a fault in one of them is found."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn import functional as F

from harness.case import Case, Dtype, LossContract, Row, parse
from harness.compare import agree, doubt
from harness.generation import cases
from harness.generation.strategies import LOSSES
from harness.reference import TORCH_DTYPES, reference, rowwise, seeded_weights
from harness.reference.attention import visible
from harness.reference.padded import pad
from harness.trace import GRADIENT, Trace

TYPICAL = parse(
    "case/1 rows=9:111111111,12:000001110111:left,5:01111:left,7:1111000 heads=4/2 layers=2 "
    "window=5 sp=1 dp=2 micro=2 seed=3"
)


def oracle(case: Case) -> Trace:
    return reference(case, torch.float64)


def gradients(trace: Trace) -> dict[str, Any]:
    return {key: trace[key].values for key in trace if key.startswith(GRADIENT)}


@settings(max_examples=60, deadline=None)
@given(cases(sps=(1,), dps=(1, 2), max_length=8))
def test_the_padded_reference_and_the_row_wise_oracle_agree(case: Case) -> None:
    # Not `agree`: very few cases stray by one to two budgets, such as one of seed 694. This is
    # the same check as before a candidate is blamed.
    padded, row_wise = oracle(case), rowwise(case)
    assert doubt(padded, row_wise) == ""
    assert list(padded) == list(row_wise)
    assert padded["nll"].tokens is not None
    assert row_wise["nll"].tokens is not None
    assert padded["nll"].tokens.tolist() == row_wise["nll"].tokens.tolist()


def test_both_references_agree_on_every_loss_contract_and_the_contracts_differ() -> None:
    losses = set()
    for loss in LOSSES:
        # One micro-batch per replica: with one row in each, micro-mean would equal row-mean.
        case = replace(TYPICAL, loss=loss, micro_batches=1)
        trace = oracle(case)
        assert agree(trace, rowwise(case)) == ""
        losses.add(float(trace["loss"].values))
    assert len(losses) == len(LOSSES)


def test_a_small_loss_of_the_row_wise_oracle_has_the_rounding_of_its_large_terms() -> None:
    case = parse(
        "case/1 rows=2:11 heads=4/4 layers=1 vocab=2 sp=1 dp=1 model=qwen2 tied=1 steps=2 "
        "dtype=fp32 seed=45626"
    )
    exact = oracle(case)["loss"].values
    padded_error, row_wise_error = (
        abs(float(trace["loss"].values - exact))
        for trace in (reference(case, torch.float32), rowwise(case, torch.float32))
    )
    assert exact < 0.01
    # The padded loss is exact by luck.
    assert padded_error < 2.0**-24 < row_wise_error < 2.0**-18


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", ["3:000,2:10:left", "1:1", "1:1,1:0:left"])
def test_without_targets_loss_and_gradients_are_zero(rows: str, loss: LossContract) -> None:
    case = replace(parse(f"case/1 rows={rows} sp=1"), loss=loss)
    for trace in (oracle(case), rowwise(case)):
        assert trace["loss"].values == 0
        assert trace["nll"].values.size == 0
        assert gradients(trace)
        assert all((values == 0).all() for values in gradients(trace).values())


def test_a_row_without_targets_counts_as_zero_in_a_row_mean_and_has_no_gradient() -> None:
    case = parse("case/1 rows=3:111 sp=1 loss=row-mean")
    with_empty_row = replace(case, rows=(*case.rows, Row("000")))
    assert with_empty_row.ids_of(0) == case.ids_of(0)
    halved, doubled = oracle(with_empty_row), Trace()
    for key in halved:
        entry = halved[key]
        doubled.put(key, entry if key == "nll" else replace(entry, values=2 * entry.values))
    assert agree(oracle(case), doubled) == ""


def test_losses_and_gradients_of_a_typical_case_are_large_enough_to_show_a_fault() -> None:
    trace = oracle(TYPICAL)
    assert np.ptp(trace["nll"].values) > 1
    assert len(gradients(trace)) == 3 + 9 * TYPICAL.layers
    for key, values in gradients(trace).items():
        assert np.isfinite(values).all(), key
        assert np.abs(values).max() > 1e-3, key


def test_weights_follow_from_the_seed_and_never_change() -> None:
    case = parse("case/1 rows=3:111 heads=2/1 dim=4 vocab=5 sp=1 seed=11")
    weights = seeded_weights(case, torch.float64)
    digest = hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights.values())).hexdigest()
    assert digest == "7a985b538766c3882781ab5642999653ea681a3b891ef56214872d7ecfcc14c7"
    again, other = (seeded_weights(replace(case, seed=seed), torch.float64) for seed in (11, 12))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not any(torch.equal(weights[name], other[name]) for name in weights)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_weights_are_rounded_to_the_cases_dtype(dtype: Dtype) -> None:
    case = replace(TYPICAL, dtype=dtype)
    rounded = seeded_weights(case, torch.float64)
    native = seeded_weights(case, TORCH_DTYPES[dtype])
    exact = seeded_weights(replace(case, dtype="fp64"), torch.float64)
    for name, weight in rounded.items():
        assert weight.dtype == torch.float64
        assert torch.equal(weight, native[name].double())
        assert not torch.equal(weight, exact[name])


def test_positions_restart_in_every_row_whatever_the_side_of_its_padding() -> None:
    # Rotary embedding depends on distances only, so no other tensor would show wrong positions.
    trace = reference(TYPICAL, torch.float64, traced=True)
    assert trace["positions"].values.tolist() == [
        t for row in TYPICAL.rows for t in range(len(row))
    ]


def window_forgotten(attended_BS: Tensor, _window: int | None) -> Tensor:
    return visible(attended_BS, None)


def padding_seen(attended_BS: Tensor, window: int | None) -> Tensor:
    return visible(torch.ones_like(attended_BS), window)


def mask_one_column_late(case: Case, further_columns: int) -> tuple[Tensor, Tensor, Tensor]:
    ids_BS, attended_BS, loss_mask_BS = pad(case, further_columns)
    return ids_BS, attended_BS, loss_mask_BS.roll(1, 1)


def averaged_over_columns(nll_BS: Tensor, counts_BS: Tensor) -> Tensor:
    return (nll_BS * counts_BS).mean()


def labels_unshifted(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(logits, labels.roll(1), **options)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("attention.visible", window_forgotten),
        ("attention.visible", padding_seen),
        ("padded.pad", mask_one_column_late),
        ("padded.group_mean", averaged_over_columns),
        ("padded.F", SimpleNamespace(cross_entropy=labels_unshifted)),
    ],
)
def test_a_fault_in_the_reference_is_caught_by_the_row_wise_oracle(
    name: str, fault: Callable[..., Any] | SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"harness.reference.{name}", fault)
    assert doubt(oracle(TYPICAL), rowwise(TYPICAL)) != ""
