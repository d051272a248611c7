"""TransformerEngine."""

from harness.case import Case, parse
from harness.trace import GRADIENT, Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.quantity import attention_gradients, attention_outputs
from properties.rivals.rule import Rival


def _tolerance(case: Case) -> Tolerance:
    if case.dtype == "fp16":
        return Tolerance(rtol=5e-3, atol=5e-3)
    # float32 and float64 are not among its dtypes.
    both = 2.5e-2 if case.heads == case.kv_heads else 3.5e-2
    return Tolerance(rtol=both, atol=both)


def _attention(case: Case, plain: Trace, candidate: Trace) -> bool:
    keys = [*attention_outputs(plain), *attention_gradients(plain, *"qkv")]
    return all(_tolerance(case).entries(plain[key], candidate[key]) for key in keys)


TRANSFORMER_ENGINE = (
    Rival(
        name="transformer-engine",
        source="NVIDIA/TransformerEngine: tests/pytorch/attention/run_attention_with_cp.py",
        compares="The output of attention and the gradients of queries, keys and values (in "
        "bfloat16 rtol and atol 2.5e-2, or 3.5e-2 with grouped queries; in float16 5e-3).",
        needs=("layers.", f"{GRADIENT}layers."),
        accepts=_attention,
        shapes=tuple(
            parse(f"case/1 {shape} dim=8 layers=1 vocab=64 sp=2 dtype=bf16")
            for shape in (
                "rows=256:1{256},256:1{256} heads=12/12",
                "rows=256:1{256},256:1{256} heads=12/12 window=32",
                "rows=256:1{256},256:1{256} heads=32/4",
                "rows=250:1{250},187:1{187} heads=12/12",
            )
        ),
        note="Rows of 4096 tokens are 256, a window of 512 is 32, a head has 8 dims in place of "
        "128. No trace holds the gradients of queries, keys and values; those of the weights that "
        "make them stand in, and are smaller.",
    ),
)
