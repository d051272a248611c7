"""ms-swift, and twinkle, which brings it its sequence parallelism."""

from harness.case import Case, parse
from harness.trace import GRADIENT, Trace
from properties.rivals.closeness import DEFAULT, Tolerance
from properties.rivals.quantity import attention_gradients, gradients
from properties.rivals.rule import Rival


def _every_gradient(case: Case, plain: Trace, candidate: Trace) -> bool:
    keys = ["loss", *gradients(plain)]
    return all(DEFAULT[case.dtype].entries(candidate[key], plain[key]) for key in keys)


def _twinkle(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return (
        Tolerance(rtol=1e-2, atol=5e-3).entries(candidate["logits"], plain["logits"])
        and Tolerance(rtol=0.0, atol=5e-3).entries(candidate["loss"], plain["loss"])
        and all(
            Tolerance(rtol=2e-2, atol=1e-2).entries(candidate[key], plain[key])
            for key in attention_gradients(plain, *"qkvo")
        )
    )


MS_SWIFT = (
    Rival(
        name="ms-swift",
        source="modelscope/ms-swift: pull/10191",
        compares="The loss and every gradient (torch's defaults: in float32 rtol 1.3e-6, "
        "atol 1e-5).",
        needs=("loss", GRADIENT),
        accepts=_every_gradient,
        shapes=tuple(
            parse(f"case/1 {shape} layers=2 vocab=64 sp=2 dtype=fp32")
            for shape in (
                "rows=16:1{16} heads=4/2",
                "rows=16:1{16} heads=4/1",
                # The first rank has a prompt and no target.
                "rows=16:0{9}1{7} heads=4/2",
            )
        ),
        note="An open pull request, known from its thread: two processes on a CPU, 72 "
        "combinations, all trainable gradients, one rank with nothing but a prompt. Tolerances, "
        "dtype and sizes were not to be seen; these are a guess.",
    ),
    Rival(
        name="twinkle",
        source="modelscope/twinkle: tests/transformers/test_sequence_parallel_and_cp.py",
        compares="All logits (rtol 1e-2, atol 5e-3), the loss (atol 5e-3) and the gradients of "
        "all projections in attention (rtol 2e-2, atol 1e-2).",
        needs=("logits", "loss", f"{GRADIENT}layers."),
        accepts=_twinkle,
        shapes=tuple(
            parse(f"case/1 {rows} heads=8/8 dim=8 layers=1 vocab=64 sp=2 dtype=bf16")
            for rows in (
                "rows=193:1{193},193:1{193},193:1{193}",
                "rows=257:1{257},171:1{171},86:1{86}",
            )
        ),
        note="Rows of 769, 513 and 257 tokens are a third, equal ones a quarter; a head has 8 "
        "dims in place of 16, the vocabulary 64 entries in place of 256. Its cases with fewer "
        "heads than ranks need a ring. The file is marked to be skipped.",
    ),
)
