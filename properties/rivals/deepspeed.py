"""DeepSpeed, and ArcticTraining, which tests the same code end to end."""

from harness.case import Case, parse
from harness.trace import Trace
from properties.rivals.closeness import DEFAULT, Tolerance, equal_as_float32
from properties.rivals.quantity import FIRST_Q
from properties.rivals.rule import Accepts, Rival

_SOURCE = "deepspeedai/DeepSpeed: tests/unit/ulysses_alst/test_ulysses_sp_hf.py"
_ROW = "case/1 rows=6:111111 ids=[1,10,10,10,2,2] heads=4/4 dim=4 layers=2 vocab=32 sp=2"
_SCALED = (
    "The vocabulary of the tiny Llama is 32 in place of 32000; its only batch is taken as it is. "
    "With the seed chosen, native sequence parallelism comes to the very same loss."
)


def _same_loss(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return equal_as_float32(plain["loss"], candidate["loss"])


def _near_loss(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return Tolerance(rtol=1e-5, atol=1e-5).entries(plain["loss"], candidate["loss"])


def _zero2(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return Tolerance(rtol=1.6e-2, atol=1e-3).entries(plain[FIRST_Q], candidate[FIRST_Q])


def _zero3(case: Case, plain: Trace, candidate: Trace) -> bool:
    return DEFAULT[case.dtype].entries(plain[FIRST_Q], candidate[FIRST_Q])


def _both(loss: Accepts, gradient: Accepts) -> Accepts:
    return lambda case, plain, candidate: (
        loss(case, plain, candidate) and gradient(case, plain, candidate)
    )


def _rival(name: str, loss: Accepts, gradient: Accepts) -> Rival:
    said = "is the same number" if loss is _same_loss else "is close (rtol 1e-5, atol 1e-5)"
    if gradient is _zero2:
        tolerance, shape, note = "rtol 1.6e-2, atol 1e-3", "dtype=bf16 seed=3", _SCALED
    else:
        tolerance, shape = (
            "torch's defaults: in float32 rtol 1.3e-6, atol 1e-5",
            "dtype=fp32 seed=2",
        )
        note = (
            f"{_SCALED} It computes in bfloat16 and compares float32 copies; with gradients as "
            "large as ours that would refuse whatever sums in another order, hence float32."
        )
    return Rival(
        name=name,
        source=_SOURCE,
        compares=f"The loss {said}, and the gradient of layer 0's query projection is close "
        f"({tolerance}).",
        needs=("loss", FIRST_Q),
        accepts=_both(loss, gradient),
        shapes=(parse(f"{_ROW} {shape}"),),
        note=note,
    )


DEEPSPEED = (
    _rival("deepspeed-zero2", _same_loss, _zero2),
    _rival("deepspeed-zero3", _same_loss, _zero3),
    _rival("deepspeed-flex-zero2", _near_loss, _zero2),
    _rival("deepspeed-flex-zero3", _near_loss, _zero3),
    Rival(
        name="arctic-training",
        source="snowflakedb/ArcticTraining: tests/trainer/test_ulysses_alst.py",
        compares="The loss of the first step (rtol 1e-6, atol 1e-6).",
        needs=("loss",),
        accepts=lambda _case, plain, candidate: Tolerance(rtol=1e-6, atol=1e-6).entries(
            plain["loss"], candidate["loss"]
        ),
        shapes=(
            parse(
                "case/1 rows=128:0{40}1{88},120:0{70}1{50} heads=4/4 dim=4 layers=2 vocab=64 sp=2 "
                "micro=2 loss=micro-mean dtype=bf16"
            ),
        ),
        note="Chats of up to 1024 tokens are 128, the vocabulary is 64 in place of 32000. Plain "
        "training has one row on each of two ranks there, and both in one batch here.",
    ),
)
