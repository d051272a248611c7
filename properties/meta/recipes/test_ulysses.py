"""The Ulysses step that comes with the harness is right for any family and any loss."""

from collections.abc import Iterator

import pytest

from harness.case import Case, Dtype
from harness.compare import Comparison
from harness.generation import cases, draw_list
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.helpers.judging import evaluate_all
from properties.helpers.places import PLANTED

pytestmark = pytest.mark.slow
# Each family and each loss.
RIGHT = (
    "llama__ppo_actor",
    "qwen3__distilled_reverse",
    "gpt_oss__grpo",
    "qwen3_next__grpo_k3",
    "mistral__supervised",
    "gemma_3__grpo_sequences",
    "deepseek_v3__gspo",
    "mistral__cispo",
    "qwen3_moe__balanced_z",
    "llama__ppo_critic",
    "llama__dpo",
    "qwen3__reward_pairs",
)
STATED = ("steps=1", "tied=0", "compiled=0", "mixed=0", "micro=1", "checkpoint=0")


def drawn(count: int, dtype: Dtype) -> list[Case]:
    """Cases that use all ranks, with rows in pairs: half of them on one replica, half on two."""
    strategy = cases(
        sps=(2, 4), max_ranks=4, dtypes=(dtype,), losses=("token-mean",), stated=STATED
    )
    fitting = [c for c in draw_list(strategy, 60, 0) if c.ranks == 4 and len(c.rows) % 2 == 0]
    chosen = [case for dp in (1, 2) for case in [c for c in fitting if c.dp == dp][: count // 2]]
    assert len(chosen) == count
    return chosen


def judged(name: str, count: int, pool: RankPool, dtype: Dtype = "fp64") -> Iterator[Comparison]:
    candidate = f"{PLANTED / 'any_recipe.py'}:{name}"
    yield from evaluate_all(((case, candidate) for case in drawn(count, dtype)), pool)


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_right(name: str, pool: RankPool) -> None:
    for comparison in judged(name, 6, pool):
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.parametrize("name", ["llama__ppo_critic", "gemma_3__grpo_sequences"])
def test_it_is_right_in_bf16(name: str, pool: RankPool) -> None:
    comparisons = list(judged(name, 6, pool, "bf16"))
    for comparison in comparisons:
        assert not comparison.verdict.failed, explain(comparison)
    assert sum(comparison.verdict.passed for comparison in comparisons) >= 3


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("gpt_oss__supervised__sinks_uncut", "model.layers.0.self_attn.o_proj"),
        ("mistral__supervised__window_ignored", "model.layers.0.self_attn.o_proj"),
        ("qwen3_next__supervised__states_not_summed", "grad."),
    ],
)
def test_a_fault_of_it_is_found(name: str, first: str, pool: RankPool) -> None:
    failure = next(found for found in judged(name, 8, pool) if found.verdict.failed)
    assert failure.measured.first is not None
    assert failure.measured.first.key.startswith(first)
