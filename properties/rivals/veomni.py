"""VeOmni."""

from harness.case import Case, parse
from harness.trace import GRADIENT, Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.quantity import attention_gradients, attention_outputs, gradient_norm
from properties.rivals.rule import Rival

_BATCH = ",".join(["64:1{64}"] * 8)


def _training(_case: Case, plain: Trace, candidate: Trace) -> bool:
    tolerance = Tolerance(rtol=0.1, atol=0.1)
    return tolerance.entries(candidate["loss"], plain["loss"]) and tolerance.numbers(
        gradient_norm(candidate), gradient_norm(plain)
    )


def _attention(_case: Case, plain: Trace, candidate: Trace) -> bool:
    bounds = {
        Tolerance(rtol=1e-5, atol=1e-6): attention_outputs(plain),
        Tolerance(rtol=1e-4, atol=1e-3): attention_gradients(plain, "o"),
        Tolerance(rtol=1e-4, atol=2e-3): attention_gradients(plain, "q"),
    }
    return all(
        bound.entries(plain[key], candidate[key]) for bound, keys in bounds.items() for key in keys
    )


VEOMNI = (
    Rival(
        name="veomni-training",
        source="ByteDance-Seed/VeOmni: tests/e2e/test_e2e_parallel.py",
        compares="The loss and the norm of all gradients in each of two steps (rtol 0.1, "
        "atol 0.1).",
        needs=("loss", GRADIENT),
        accepts=_training,
        shapes=tuple(
            parse(f"case/1 rows={_BATCH} layers=2 dim=4 vocab=64 sp=2 dp=2 micro=4 dtype=bf16 {x}")
            for x in (
                "heads=12/2 tied=1",
                "heads=12/2 tied=1 steps=2",
                "heads=32/8",
            )
        ),
        note="Rows of 2048 tokens are 64, hidden sizes 1536 and 4096 are 48 and 128, the 4 layers "
        "of the second model are 2. tests/distributed/test_fsdp_equivalence.py has the same "
        "tolerances and leaves the loss out.",
    ),
    Rival(
        name="veomni-attention",
        source="ByteDance-Seed/VeOmni: tests/parallel/ulysses/test_ulysses.py",
        compares="The output of attention (rtol 1e-5, atol 1e-6) and the gradients of its output "
        "(rtol 1e-4, atol 1e-3) and query (rtol 1e-4, atol 2e-3) projections.",
        needs=("layers.", f"{GRADIENT}layers."),
        accepts=_attention,
        shapes=tuple(
            parse(f"case/1 rows={row},{row} heads=16/16 dim=4 layers=1 vocab=64 sp=2 dtype=fp32")
            for row in ("256:1{256}", "255:1{255}")
        ),
        note="Rows of 8192 and 8191 tokens are 256 and 255, a head has 4 dims in place of 64. Its "
        "module has no causal mask and sums its output; here it stands in a decoder, whose every "
        "layer is compared. The gradient of its input is left out: no trace holds it.",
    ),
)
