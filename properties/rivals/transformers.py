"""transformers."""

from harness.case import Case, parse
from harness.trace import Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.rule import Rival


def _losses(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return Tolerance(rtol=2e-5, atol=2e-2).entries(candidate["loss"], plain["loss"])


TRANSFORMERS = (
    Rival(
        name="transformers",
        source="huggingface/transformers: tests/deepspeed/test_alst_ulysses_sp.py",
        compares="The loss of every one of 10 steps (rtol 2e-5, atol 2e-2).",
        needs=("loss",),
        accepts=_losses,
        shapes=tuple(
            parse(f"case/1 {row} heads=4/4 dim=4 layers=2 vocab=64 sp=2 dtype=fp32 steps={steps}")
            for row, steps in (
                ("rows=128:1{128}", 1),
                ("rows=112:1{112}", 1),
                ("rows=128:1{128}", 10),
            )
        ),
        note="The vocabulary of the tiny Llama is 64 in place of 32000. Of ten steps, the first "
        "and the last are shapes of their own, both on the same row.",
    ),
)
