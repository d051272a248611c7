"""Megatron-LM."""

import math

import numpy as np

from harness.case import Case, parse
from harness.trace import GRADIENT, Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.quantity import gradients, squares, zeros
from properties.rivals.rule import Rival

# k x C^(L + 1 - l) x epsilon of bfloat16, with the constants and the layer that are written there.
GRADIENT_BOUND = 4.0 * 1.03**33 * 2.0**-7
_BATCH = ",".join(["16:1{16}"] * 32)


def _training(_case: Case, plain: Trace, candidate: Trace) -> bool:
    # Losses are read from TensorBoard and rounded to five decimals.
    losses = [round(float(trace["loss"].values), 5) for trace in (candidate, plain)]
    return Tolerance(rtol=0.05, atol=0.0).numbers(*losses) and Tolerance(
        rtol=0.20, atol=0.0
    ).numbers(zeros(candidate), zeros(plain))


def _gradients(_case: Case, plain: Trace, candidate: Trace) -> bool:
    # It also fails where all gradients are below 1e-4. That is left out: it says nothing about a
    # candidate, and a batch without targets has no others.
    return all(_gradient(plain, candidate, key) for key in gradients(plain))


def _gradient(plain: Trace, candidate: Trace, key: str) -> bool:
    one, other = (trace[key].values.astype(np.float64) for trace in (plain, candidate))
    if one.shape != other.shape:
        return False
    # The one that comes second, which is the candidate's, is the measure. NaN is in no bound.
    norm = math.sqrt(squares(candidate, [key])[0])
    return float(np.linalg.norm(one - other)) / (norm + 1e-30) <= GRADIENT_BOUND


MEGATRON = (
    Rival(
        name="megatron-training",
        source="NVIDIA/Megatron-LM: "
        "tests/functional_tests/python_test_utils/test_pretraining_regular_pipeline.py",
        compares="The loss to five decimals (rtol 0.05) and how many elements of all gradients "
        "are zero (rtol 0.20).",
        needs=("loss", GRADIENT),
        accepts=_training,
        shapes=tuple(
            parse(f"case/1 rows={_BATCH} heads=8/8 layers=2 vocab=512 micro=8 dtype=bf16 {shape}")
            for shape in ("sp=2 loss=micro-mean", "sp=2 loss=token-mean", "sp=4 loss=micro-mean")
        ),
        note="Rows of 1024 tokens are 16, 12 layers are 2, hidden size 512 is 64, tensor and "
        "pipeline parallelism are left out. It compares a configuration with an earlier run of "
        "the same configuration; here with plain training, hence without its exact mode. One of "
        "its 100 steps may miss the bound; of one step none may.",
    ),
    Rival(
        name="megatron-gradients",
        source="NVIDIA/Megatron-LM: "
        "tests/functional_tests/python_test_utils/test_optimizer_grads_match.py",
        compares="Every gradient, by the norm of the difference over the norm (at most 0.0829).",
        needs=(GRADIENT,),
        accepts=_gradients,
        shapes=(
            parse("case/1 rows=256:1{256},256:1{256} heads=32/8 dim=4 layers=2 sp=2 dtype=bf16"),
        ),
        note="Rows of 512 tokens are 256, 32 layers are 2, hidden size 3072 is 128, the "
        "vocabulary is 32. Its gradients are clipped to norm 1 first, which hides a common "
        "factor, and all layers are one tensor; here neither.",
    ),
)
