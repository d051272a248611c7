"""The parameters that Qwen adds to a Llama are sharded, reduced and judged like all others."""

import pytest

from harness.candidates import Rank
from harness.candidates.own.native import LocalDialect
from harness.case import Model, parse
from harness.compare import Verdict
from harness.generation import cases, draw_list
from harness.ranks.pool import RankPool
from harness.reference.decoder import Decoder
from properties.helpers.judging import evaluate, evaluate_all

ADDED = {"qwen2": ("q_bias", "k_bias", "v_bias"), "qwen3": ("q_norm", "k_norm")}
LINE = "case/1 rows=5:11111,6:011101 heads=4/2 layers=2 sp=2 dtype=fp64 seed=1"


class LeavesOut(LocalDialect):
    """The gradients of the parameters that an architecture adds are not summed over ranks."""

    name = "leaves-out"

    def reduce(self, model: Decoder, rank: Rank) -> None:
        kept = {
            parameter: parameter.grad.clone()
            for name, parameter in model.named_parameters()
            if name.endswith(("_bias", "q_norm", "k_norm")) and parameter.grad is not None
        }
        super().reduce(model, rank)
        for parameter, gradient in kept.items():
            parameter.grad = gradient


LEAVES_OUT = LeavesOut()


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("model", ADDED)
def test_every_architecture_holds_in_generated_cases(
    model: Model, count: int, harness_pool: RankPool
) -> None:
    batch = draw_list(cases(architectures=(model,), max_ranks=4), count, 0)
    jobs = ((case, name) for case in batch for name in ("native-gather", "native-local"))
    for comparison in evaluate_all(jobs, harness_pool):
        assert comparison.verdict.passed, comparison
        judged = {result.key for result in comparison.measured.keys}
        assert {f"grad.layers.0.{part}" for part in ADDED[model]} <= judged


@pytest.mark.slow
@pytest.mark.parametrize("model", ADDED)
def test_a_bias_or_norm_left_out_of_the_reduction_is_found(
    model: Model, harness_pool: RankPool
) -> None:
    comparison = evaluate(parse(f"{LINE} model={model}"), f"{__file__}:LEAVES_OUT", harness_pool)
    assert comparison.verdict is Verdict.DIVERGED
    wrong = {result.key.rpartition(".")[2] for result in comparison.measured.keys if result.wrong}
    assert wrong == set(ADDED[model])
