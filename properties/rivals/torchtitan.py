"""torchtitan."""

import numpy as np

from harness.case import Case, parse
from harness.trace import Trace
from properties.rivals.closeness import equal_as_float32
from properties.rivals.rule import Rival

_BATCH = ",".join(["64:1{64}"] * 8)


def _loss(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return equal_as_float32(plain["loss"], candidate["loss"])


def _logits(_case: Case, plain: Trace, candidate: Trace) -> bool:
    expected = plain["logits"].values.astype(np.float64)
    actual = candidate["logits"].values.astype(np.float64)
    if actual.shape != expected.shape:
        return False
    largest = max(float(np.abs(expected).max()), 1e-9)
    # Below, not at most; and NaN is not below anything.
    return float(np.abs(actual - expected).max()) / largest < 1e-4


TORCHTITAN = (
    Rival(
        name="torchtitan-loss",
        source="pytorch/torchtitan: scripts/loss_compare.py",
        compares="The loss of the first step, as float32, is the same number.",
        needs=("loss",),
        accepts=_loss,
        shapes=(
            parse(
                f"case/1 rows={_BATCH} heads=16/16 dim=4 layers=2 vocab=64 sp=2 dp=4 dtype=bf16"
            ),
        ),
        note="Neither run of its comparison is sequence parallel: 8 shards against 4 times 2, "
        "here 4 replicas of 2 ranks. Rows of 2048 tokens are 64, 6 layers are 2, hidden size 256 "
        "is 64, the vocabulary 64 in place of 2048.",
    ),
    Rival(
        name="torchtitan-logits",
        source="pytorch/torchtitan: torchtitan/experiments/transformers_modeling_backend/tests/"
        "test_flex_cp_numerical.py",
        compares="All logits, by the largest difference over the largest logit (below 1e-4).",
        needs=("logits",),
        accepts=_logits,
        shapes=(
            parse("case/1 rows=256:1{256} heads=16/16 dim=4 layers=2 vocab=64 sp=2 dtype=fp32"),
        ),
        note="Hidden size 256 is 64, the vocabulary is 64. No workflow runs the original.",
    ),
)
