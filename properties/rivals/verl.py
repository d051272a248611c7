"""verl."""

from harness.case import Case, parse
from harness.trace import GRADIENT, Trace
from properties.rivals.closeness import Tolerance
from properties.rivals.quantity import FIRST_Q, gradient_norm
from properties.rivals.rule import Rival

# Between 0.8 and 0.9 of 64 columns, as its random mask leaves them.
_EIGHT_ROWS = ",".join(f"{n}:1{{{n}}}" for n in (51, 57, 53, 55, 52, 56, 54, 51))
# A question and its answer, 16 times.
_SIXTEEN_ROWS = ",".join(f"{q + a}:0{{{q}}}1{{{a}}}" for q, a in ((18, 12), (14, 18)) * 8)


def _model(_case: Case, plain: Trace, candidate: Trace) -> bool:
    means = [float(trace["logits"].values.mean(dtype="float64")) for trace in (plain, candidate)]
    return Tolerance(rtol=1e-2, atol=3e-5).numbers(*means) and Tolerance(
        rtol=1e-2, atol=1e-3
    ).entries(candidate[FIRST_Q], plain[FIRST_Q])


def _log_probs(_case: Case, plain: Trace, candidate: Trace) -> bool:
    # A candidate may have one for every token, where plain training has those that count.
    expected, actual = plain["nll"], candidate["nll"]
    if expected.tokens is not None:
        actual = actual.renumbered(expected.tokens, expected.tokens)
    return Tolerance(rtol=1e-3, atol=1e-3).entries(actual, expected)


def _training(_case: Case, plain: Trace, candidate: Trace) -> bool:
    return Tolerance(rtol=1e-2, atol=1e-2).entries(plain["loss"], candidate["loss"]) and Tolerance(
        rtol=3e-2, atol=1e-4
    ).numbers(gradient_norm(plain), gradient_norm(candidate))


VERL = (
    Rival(
        name="verl-model",
        source="verl-project/verl: tests/models/test_transformers_ulysses.py",
        compares="The mean of all logits (rtol 1e-2, atol 3e-5) and the gradient of layer 0's "
        "query projection (rtol 1e-2, atol 1e-3).",
        needs=("logits", FIRST_Q),
        accepts=_model,
        shapes=tuple(
            parse(f"case/1 rows={_EIGHT_ROWS} layers=2 dim=4 vocab=64 dtype=bf16 {shape}")
            for shape in (
                "heads=32/32 sp=8",
                "heads=28/4 sp=4 dp=2",
                "heads=32/4 sp=4 dp=2",
                "heads=32/4 sp=8",
            )
        ),
        note="128 columns are 64, a head has 4 dims in place of 128, the vocabulary 64 entries. "
        "It differentiates the mean of logits and compares each rank's own gradient before any "
        "reduction; here it is given the gradient of the loss, reduced. Of its shapes, 28/4 heads "
        "over 8 ranks must be rejected, and the one with sparse attention is not expressible.",
    ),
    Rival(
        name="verl-log-probs",
        source="verl-project/verl: tests/special_distributed/test_fused_kernels_ulysses_sp.py",
        compares="The log-probability of every token (rtol 1e-3, atol 1e-3).",
        needs=("nll",),
        accepts=_log_probs,
        shapes=(parse("case/1 rows=32:1{32} heads=8/8 dim=8 layers=2 vocab=256 sp=2 dtype=bf16"),),
        note="Here only tokens that are supervised have one. No workflow runs the original.",
    ),
    Rival(
        name="verl-training",
        source="verl-project/verl: tests/special_e2e/sft/compare_sft_engine_results.py",
        compares="The loss of the first step (rtol 1e-2, atol 1e-2) and the norm of all gradients "
        "(rtol 3e-2, atol 1e-4).",
        needs=("loss", GRADIENT),
        accepts=_training,
        shapes=(
            parse(
                f"case/1 rows={_SIXTEEN_ROWS} heads=14/2 dim=4 layers=2 vocab=64 tied=1 sp=2 dp=4 "
                "micro=2 dtype=bf16"
            ),
        ),
        note="128 rows of GSM8K are 16, 24 layers are 2, hidden size 896 is 56.",
    ),
)
