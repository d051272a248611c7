"""yunchang, which is named long-context-attention."""

from harness.case import Case, parse
from harness.trace import Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.quantity import attention_outputs
from properties.rivals.rule import Rival


def _outputs(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return all(
        Tolerance(rtol=0.0, atol=0.1).entries(candidate[key], plain[key])
        for key in attention_outputs(plain)
    )


YUNCHANG = (
    Rival(
        name="yunchang",
        source="feifeibear/long-context-attention: test/test_hybrid_attn.py",
        compares="The output of attention (rtol 0, atol 0.1).",
        needs=("layers.",),
        accepts=_outputs,
        shapes=tuple(
            parse(f"case/1 rows=512:1{{512}} heads=32/32 dim=4 layers=1 sp={sp} dtype=bf16")
            for sp in (2, 4)
        ),
        note="1024 tokens are 512, a head has 4 dims in place of 64. Its gradients are printed, "
        "not compared.",
    ),
)
