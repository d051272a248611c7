"""Long sequences: computing in blocks changes no result, and memory stays linear in the length."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from harness.case import Case, Dtype, Kernel, parse
from harness.compare import Verdict, agree
from harness.generation import cases
from harness.plugin import Evaluate
from harness.reference import TORCH_DTYPES, reference
from harness.reference.attention import fused
from harness.reference.padded import LOGITS_AT_ONCE
from harness.report import explain
from harness.trace import Trace
from properties.helpers.memory import LargestTensor
from properties.helpers.places import PLANTED

CHUNKED = f"{PLANTED / 'chunked.py'}:CHUNKED"
RAGGED = parse(
    "case/1 rows=9:111111111,26:0{8}1{18}:left,5:01111:left,1:1,31:0{5}1{26} heads=4/2 layers=2 "
    "sp=1 seed=3"
)
LONG = parse(
    "case/1 rows=1700:0{300}1{1400},201:1{201}:left,147:1{147} heads=4/2 dim=4 vocab=12000 sp=2"
)


@contextmanager
def in_blocks(scores: int, logits: int) -> Iterator[None]:
    """Let the reference hold at most so many scores and logits at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.reference.attention.SCORES_AT_ONCE", scores)
        patch.setattr("harness.reference.padded.LOGITS_AT_ONCE", logits)
        yield


def compute_oracle(case: Case) -> Trace:
    return reference(case, torch.float64)


@settings(max_examples=20)
@given(cases(sps=(1,), dps=(1, 2)), st.integers(1, 2000), st.integers(1, 500))
def test_blocks_of_any_size_do_not_change_the_reference(
    case: Case, scores: int, logits: int
) -> None:
    at_once = compute_oracle(case)
    with in_blocks(scores, logits):
        assert agree(at_once, compute_oracle(case)) == ""


@pytest.mark.parametrize("window", [None, 4, 29])
def test_blocks_do_not_change_rows_of_any_length_on_either_side(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(RAGGED, window=window)
    at_once = compute_oracle(case)
    for scores in (1, 4 * 31 * 30):
        with in_blocks(scores, 70):
            assert agree(at_once, compute_oracle(case)) == ""
    # Fused attention is computed in blocks as well.
    monkeypatch.setattr("harness.reference.padded.attention", fused)
    with in_blocks(4 * 31 * 7, 70):
        assert agree(at_once, compute_oracle(case)) == ""


class SavedTensors(saved_tensors_hooks):
    """The tensors that an autograd graph holds between forward and backward."""

    def __init__(self) -> None:
        super().__init__(self.save, self.use)
        self.tensors: dict[int, Tensor] = {}
        self.is_in_backward = False

    def save(self, tensor: Tensor) -> Tensor:
        if not self.is_in_backward:
            self.tensors[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def use(self, tensor: Tensor) -> Tensor:
        self.is_in_backward = True
        return tensor

    @property
    def bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "dtype"), [("eager", "fp64"), ("sdpa", "fp32")])
def test_the_reference_never_holds_all_scores_or_logits(kernel: Kernel, dtype: Dtype) -> None:
    case = replace(LONG, kernel=kernel, dtype=dtype)
    largest, saved = LargestTensor(), SavedTensors()  # type: ignore[no-untyped-call]
    with largest, saved:
        reference(case, TORCH_DTYPES[dtype])
    scores, logits = case.heads * len(case.rows[0]) ** 2, case.tokens * case.vocab
    assert largest.numbers <= LOGITS_AT_ONCE < min(scores, logits)
    # All blocks together do not hold them until backward either.
    assert saved.bytes < min(scores, logits) * TORCH_DTYPES[dtype].itemsize


def test_twice_the_tokens_keep_twice_the_memory_until_backward() -> None:
    half, whole = SavedTensors(), SavedTensors()
    with in_blocks(1 << 14, 1 << 14):
        for tokens, saved in ((400, half), (800, whole)):
            with saved:
                compute_oracle(parse(f"case/1 rows={tokens}:1{{{tokens}}},100:1{{100}}:left sp=1"))
    assert half.bytes < whole.bytes < 2.1 * half.bytes


@pytest.mark.slow
@settings(max_examples=10)
@given(case=cases(max_ranks=2))
def test_chunked_logits_do_not_change_a_step(harness_evaluate: Evaluate, case: Case) -> None:
    comparison = harness_evaluate(case, CHUNKED)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize(
    "around", ["checkpoint=1", "wrapper=ddp", "wrapper=fsdp", "wrapper=fsdp checkpoint=1"]
)
def test_chunked_logits_hold_with_wrappers_and_checkpointing(
    harness_evaluate: Evaluate, around: str
) -> None:
    case = parse(f"case/1 rows=9:1{{9}},4:0111:left,2:11,7:0111111 sp=2 micro=2 tied=1 {around}")
    comparison = harness_evaluate(case, CHUNKED)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
def test_two_thousand_tokens_of_a_real_vocabulary_are_judged(harness_evaluate: Evaluate) -> None:
    comparison = harness_evaluate(replace(LONG, kernel="sdpa", dtype="fp32"), "native-local")
    assert comparison.verdict is Verdict.WITHIN, explain(comparison)
