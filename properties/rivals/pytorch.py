"""PyTorch's own context parallelism."""

from harness.case import Case, parse
from harness.trace import GRADIENT, Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.quantity import attention_gradients, attention_outputs
from properties.rivals.rule import Rival

_BATCH = ",".join(["64:1{64}"] * 8)


def _attention(case: Case, plain: Trace, candidate: Trace) -> bool:
    # Both grow with the number of ranks. 1e-5 is the default of torch.allclose.
    bounds = {
        Tolerance(rtol=1e-5, atol=1e-3 * case.sp): attention_outputs(plain),
        Tolerance(rtol=1e-5, atol=8e-3 * case.sp): attention_gradients(plain, *"qkv"),
    }
    return all(
        bound.entries(plain[key], candidate[key]) for bound, keys in bounds.items() for key in keys
    )


PYTORCH = (
    Rival(
        name="pytorch",
        source="pytorch/pytorch: test/distributed/tensor/test_attention.py",
        compares="The output of attention (rtol 1e-5, atol 1e-3 times ranks) and the gradients of "
        "queries, keys and values (rtol 1e-5, atol 8e-3 times ranks).",
        needs=("layers.", f"{GRADIENT}layers."),
        accepts=_attention,
        shapes=(parse(f"case/1 rows={_BATCH} heads=8/8 dim=4 layers=1 vocab=64 sp=2 dtype=bf16"),),
        note="Rows of 128 tokens are 64, a head has 4 dims in place of 32. No trace holds the "
        "gradients of queries, keys and values; those of the weights that make them stand in, and "
        "are smaller. Its count of collectives is left out. Not read in its newest version.",
    ),
)
