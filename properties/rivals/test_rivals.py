"""The rules of other suites accept what is right, up to their bounds, and what they cannot see."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from transformers import LlamaConfig, LlamaForCausalLM

from harness.campaign.check import draw
from harness.candidates.own.mutants import BANK
from harness.case import Case, Dtype, parse
from harness.generation import cases
from harness.ranks.pool import RankPool
from harness.reference import TORCH_DTYPES, reference
from harness.trace import Entry, Trace
from properties.rivals import RIVALS, Rival
from properties.rivals.__main__ import REQUEST
from properties.rivals.contest import contest
from properties.rivals.megatron import GRADIENT_BOUND
from properties.rivals.silent import SILENT

Values = Any
Change = Callable[[Values], Values]

BY_NAME = {rival.name: rival for rival in RIVALS}
LOUD = [rival for rival in RIVALS if rival not in SILENT]
LOSSES = ("arctic-training", "transformers", "torchtitan-loss")
FORWARD = (*LOSSES, "verl-log-probs", "torchtitan-logits", "yunchang")
Q = "grad.layers.0.q"


@cache
def plain(case: Case) -> Trace:
    return reference(case, TORCH_DTYPES[case.dtype], traced=True)


def covers(need: str, key: str) -> bool:
    return key.startswith(need) if need.endswith(".") else key == need


def needed(rival: Rival, trace: Trace) -> list[str]:
    return [key for key in trace if any(covers(need, key) for need in rival.needs)]


def changed(trace: Trace, change: Change, *needs: str) -> Trace:
    """With other values in the entries of these keys."""
    other = Trace()
    for key in trace:
        entry = trace[key]
        if any(covers(need, key) for need in needs):
            entry = replace(entry, values=change(np.asarray(entry.values, np.float64)))
        other.put(key, entry)
    return other


def times(factor: float) -> Change:
    return lambda values: values * factor


def all_of_them(value: float) -> Change:
    return lambda values: np.full_like(values, value)


def accepts_on_its_shapes(rival: Rival, change: Change, *needs: str) -> list[bool]:
    return [
        rival.accepts(case, plain(case), changed(plain(case), change, *needs))
        for case in rival.shapes
    ]


def every(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("rival", [BY_NAME[name] for name in names], ids=names)


def test_names_are_unique_and_sources_are_files() -> None:
    assert len(BY_NAME) == len(RIVALS) > 20
    for rival in RIVALS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+: [\w./-]+", rival.source), rival.source
        assert rival.compares.endswith("."), rival.name


def test_shapes_are_small_enough_to_run_anywhere() -> None:
    for rival in RIVALS:
        assert 1 <= len(rival.shapes) == len(set(rival.shapes)) <= 4, rival.name
        for case in rival.shapes:
            assert 2 <= case.sp <= case.ranks <= 8, case
            assert case.tokens <= 600, case
            assert case.layers <= 2, case
            assert parse(str(case)) == case


@every(*BY_NAME)
def test_a_rival_accepts_plain_training_on_its_own_shapes(rival: Rival) -> None:
    assert all(accepts_on_its_shapes(rival, times(1.0), *rival.needs))


@settings(max_examples=20)
@given(cases(dtypes=("fp64", "fp32", "bf16")))
def test_every_rival_accepts_plain_training_on_any_case(case: Case) -> None:
    trace = reference(case, TORCH_DTYPES[case.dtype], traced=True)
    assert [rival.name for rival in RIVALS if not rival.accepts(case, trace, trace)] == []


@every(*BY_NAME)
def test_a_rival_looks_at_nothing_but_what_it_says_it_needs(rival: Rival) -> None:
    case = rival.shapes[0]
    trace = plain(case)
    keys = needed(rival, trace)
    assert rival.accepts(case, trace.only(keys), trace.only(keys))
    others = [key for key in trace if key not in keys]
    assert rival.accepts(case, trace, changed(trace, times(math.nan), *others))


@every(*(rival.name for rival in LOUD))
def test_a_rival_refuses_what_is_not_a_number_where_it_looks(rival: Rival) -> None:
    for need in rival.needs:
        assert not any(accepts_on_its_shapes(rival, times(math.nan), need)), need


@every(*(rival.name for rival in SILENT))
def test_a_suite_that_compares_nothing_accepts_anything(rival: Rival) -> None:
    case = rival.shapes[0]
    everything = tuple(plain(case))
    assert all(accepts_on_its_shapes(rival, times(math.nan), *everything))


@pytest.mark.parametrize("rival", LOUD, ids=[rival.name for rival in LOUD])
def test_a_rival_refuses_rows_that_are_missing(rival: Rival) -> None:
    case = rival.shapes[0]
    trace = plain(case)
    short = Trace()
    for key in trace:
        values, tokens = trace[key].values, trace[key].tokens
        keep = values[1:] if values.ndim else np.asarray(0.0)
        short.put(key, Entry(keep, None if tokens is None else tokens[1:]))
    assert not rival.accepts(case, trace, short)


def twos() -> Trace:
    """Every key that some rule looks at, 2 in every element of it."""
    trace, tokens = Trace(), np.arange(2)
    trace.put("layers.0.attn.out", Entry(np.full((2, 2, 2), 2.0), tokens))
    trace.put("logits", Entry(np.full((2, 3), 2.0), tokens))
    trace.put("nll", Entry(np.array([2.0]), tokens[:1]))
    trace.put("loss", Entry(np.array(2.0)))
    for name in ("head", *(f"layers.0.{part}" for part in "oqkv")):
        trace.put(f"grad.{name}", Entry(np.full((2, 2), 2.0)))
    return trace


# Of five gradients with four elements each.
NORM = math.sqrt(5 * 4 * 2.0**2)


def over_plain(rtol: float, atol: float, size: float = 2.0) -> float:
    """How much larger than `size` a number may be whose bound is taken from the plain one."""
    return 1 + rtol + atol / size


def over_itself(rtol: float, atol: float, size: float = 2.0) -> float:
    """And how much where the bound is taken from the larger one."""
    return (1 + atol / size) / (1 - rtol)


HALF_AN_ULP = 1 + 2.0**-24
# Rival, dtype, keys, and the factor up to which it accepts a value of 2.
BOUNDS: list[tuple[str, Dtype, str, float]] = [
    ("verl-model", "bf16", "logits", over_itself(1e-2, 3e-5)),
    ("verl-model", "bf16", Q, over_plain(1e-2, 1e-3)),
    ("verl-log-probs", "bf16", "nll", over_plain(1e-3, 1e-3)),
    ("verl-training", "bf16", "loss", over_itself(1e-2, 1e-2)),
    ("verl-training", "bf16", "grad.", over_itself(3e-2, 1e-4, NORM)),
    ("deepspeed-zero2", "bf16", "loss", HALF_AN_ULP),
    ("deepspeed-zero2", "bf16", Q, over_itself(1.6e-2, 1e-3)),
    ("deepspeed-zero3", "fp32", "loss", HALF_AN_ULP),
    ("deepspeed-zero3", "fp32", Q, over_itself(1.3e-6, 1e-5)),
    ("deepspeed-zero3", "bf16", Q, over_itself(1.6e-2, 1e-5)),
    ("deepspeed-zero3", "fp16", Q, over_itself(1e-3, 1e-5)),
    ("deepspeed-zero3", "fp64", Q, over_itself(1e-7, 1e-7)),
    ("deepspeed-flex-zero2", "bf16", "loss", over_itself(1e-5, 1e-5)),
    ("deepspeed-flex-zero2", "bf16", Q, over_itself(1.6e-2, 1e-3)),
    ("deepspeed-flex-zero3", "fp32", "loss", over_itself(1e-5, 1e-5)),
    ("deepspeed-flex-zero3", "fp32", Q, over_itself(1.3e-6, 1e-5)),
    ("arctic-training", "bf16", "loss", over_itself(1e-6, 1e-6)),
    ("transformers", "fp32", "loss", over_plain(2e-5, 2e-2)),
    ("megatron-training", "bf16", "loss", over_plain(0.05, 0.0)),
    ("megatron-gradients", "bf16", "grad.head", 1 / (1 - GRADIENT_BOUND)),
    ("veomni-training", "bf16", "loss", over_plain(0.1, 0.1)),
    ("veomni-training", "bf16", "grad.", over_plain(0.1, 0.1, NORM)),
    ("veomni-attention", "fp32", "layers.", over_itself(1e-5, 1e-6)),
    ("veomni-attention", "fp32", "grad.layers.0.o", over_itself(1e-4, 1e-3)),
    ("veomni-attention", "fp32", Q, over_itself(1e-4, 2e-3)),
    ("ms-swift", "fp32", "loss", over_plain(1.3e-6, 1e-5)),
    ("ms-swift", "fp32", "grad.head", over_plain(1.3e-6, 1e-5)),
    ("twinkle", "bf16", "logits", over_plain(1e-2, 5e-3)),
    ("twinkle", "bf16", "loss", over_plain(0.0, 5e-3)),
    ("twinkle", "bf16", "grad.layers.0.v", over_plain(2e-2, 1e-2)),
    ("yunchang", "bf16", "layers.", over_plain(0.0, 0.1)),
    ("torchtitan-loss", "bf16", "loss", HALF_AN_ULP),
    ("torchtitan-logits", "fp32", "logits", over_plain(1e-4, 0.0)),
    ("transformer-engine", "bf16", "layers.", over_itself(2.5e-2, 2.5e-2)),
    ("transformer-engine", "fp16", "grad.layers.0.k", over_itself(5e-3, 5e-3)),
    ("pytorch", "bf16", "layers.", over_itself(1e-5, 2e-3)),
    ("pytorch", "bf16", "grad.layers.0.k", over_itself(1e-5, 1.6e-2)),
]


@pytest.mark.parametrize(("name", "dtype", "keys", "factor"), BOUNDS)
def test_a_value_just_inside_the_bound_is_accepted_and_one_just_outside_refused(
    name: str, dtype: Dtype, keys: str, factor: float
) -> None:
    rival, case = BY_NAME[name], parse(f"case/1 rows=2:11 heads=2/2 dim=2 sp=2 dtype={dtype}")

    def accepted(share: float) -> bool:
        off = changed(twos(), times(1 + (factor - 1) * share), keys)
        return rival.accepts(case, twos(), off)

    assert accepted(0.999)
    assert not accepted(1.001)


def test_every_bound_of_every_rival_is_tried() -> None:
    # Zeros are not values, and have a test of their own.
    tried = {(name, keys) for name, _, keys, _ in BOUNDS} | {("megatron-training", "grad.head")}
    for rival in LOUD:
        of_it = [keys for name, keys in tried if name == rival.name]
        for need in rival.needs:
            assert any(covers(need, keys) for keys in of_it), (rival.name, need)


def test_grouped_queries_have_a_wider_bound_in_transformer_engine() -> None:
    case = parse("case/1 rows=2:11 heads=4/2 dim=2 sp=2 dtype=bf16")
    rival, bound = BY_NAME["transformer-engine"], over_itself(3.5e-2, 3.5e-2)
    for share, accepted in ((0.999, True), (1.001, False)):
        off = changed(twos(), times(1 + (bound - 1) * share), "layers.")
        assert rival.accepts(case, twos(), off) is accepted


def test_megatron_counts_zeros_up_to_a_fifth_more() -> None:
    def with_zeros(count: int) -> Trace:
        values = np.ones(100)
        values[:count] = 0.0
        trace = twos()
        trace.put("grad.head", Entry(values))
        return trace

    rival, case = BY_NAME["megatron-training"], parse("case/1 rows=2:11 dtype=bf16")
    assert rival.accepts(case, with_zeros(10), with_zeros(12))
    assert not rival.accepts(case, with_zeros(10), with_zeros(13))


def test_a_candidate_may_have_a_loss_for_tokens_that_do_not_count() -> None:
    rival, case = BY_NAME["verl-log-probs"], parse("case/1 rows=2:11 dtype=bf16")
    more = twos()
    more.put("nll", Entry(np.array([2.0, 9.0]), np.arange(2)))
    assert rival.accepts(case, twos(), more)


# What follows is what some of them cannot see, each on its own shapes.


@every(*FORWARD)
def test_who_compares_no_gradient_accepts_that_all_are_zero(rival: Rival) -> None:
    assert all(accepts_on_its_shapes(rival, times(0.0), "grad."))


@every(*LOSSES, "megatron-training", "deepspeed-zero3", "ms-swift")
def test_a_loss_that_is_compared_may_hide_that_logits_are_of_other_tokens(rival: Rival) -> None:
    assert all(accepts_on_its_shapes(rival, np.flipud, "logits"))


@every("verl-training", "veomni-training", "megatron-training")
def test_neither_norms_nor_zeros_tell_a_gradient_from_its_opposite(rival: Rival) -> None:
    assert all(accepts_on_its_shapes(rival, times(-1.0), "grad."))


@every("verl-model", "deepspeed-zero2", "deepspeed-zero3", "deepspeed-flex-zero3")
def test_who_compares_the_gradient_of_one_weight_accepts_that_the_others_are_zero(
    rival: Rival,
) -> None:
    for case in rival.shapes:
        others = [key for key in plain(case) if key.startswith("grad.") and key != Q]
        assert rival.accepts(case, plain(case), changed(plain(case), times(0.0), *others))


def test_verls_mean_of_logits_does_not_know_which_token_has_which() -> None:
    assert all(accepts_on_its_shapes(BY_NAME["verl-model"], np.flipud, "logits"))


def test_veomnis_norm_hardly_feels_that_every_query_has_no_gradient() -> None:
    queries = ("grad.layers.0.q", "grad.layers.1.q")
    assert all(accepts_on_its_shapes(BY_NAME["veomni-training"], times(0.0), *queries))


def test_megatron_accepts_gradients_nine_percent_too_large_and_not_ten() -> None:
    rival = BY_NAME["megatron-gradients"]
    assert all(accepts_on_its_shapes(rival, times(1.09), "grad."))
    assert not any(accepts_on_its_shapes(rival, times(1.10), "grad."))


def test_transformers_accepts_that_the_label_at_the_shard_edge_is_lost() -> None:
    rival = BY_NAME["transformers"]
    for case in rival.shapes:
        nll = plain(case)["nll"]
        assert nll.tokens is not None
        kept = nll.values[nll.tokens != case.tokens // case.sp - 1]
        assert len(kept) == len(nll.values) - 1
        lost = changed(plain(case), all_of_them(kept.mean()), "loss")
        assert float(lost["loss"].values) != float(plain(case)["loss"].values)
        assert rival.accepts(case, plain(case), lost)


def test_at_its_own_size_verls_bound_accepts_zero_eight_times_and_the_opposite() -> None:
    rival = BY_NAME["verl-model"]
    for case in rival.shapes:
        # The largest gradient of a mean of logits in its own model, of hidden size 4096, freshly
        # initialised.
        own = 1.25e-4 / np.abs(plain(case)[Q].values).max()
        small = changed(plain(case), times(own), Q)
        for factor in (0.0, 8.0, -1.0):
            assert rival.accepts(case, small, changed(small, times(factor), Q))
        assert not rival.accepts(case, plain(case), changed(plain(case), times(0.0), Q))


def freshly_initialised(ids: torch.Tensor, **sizes: Any) -> Trace:
    """A step of a Llama as the suite configures it; layer 0's attention is what is kept."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    trace = Trace()
    trace.add("logits", out.logits[0].detach(), torch.arange(ids.shape[1]))
    trace.add("loss", out.loss.detach())
    attention = model.model.layers[0].self_attn
    for part in "qkvo":
        weight = getattr(attention, f"{part}_proj").weight
        trace.add(f"grad.layers.0.{part}", weight.grad)
    return trace


def test_at_its_own_size_deepspeeds_wider_bound_accepts_zero_and_twice() -> None:
    trace = freshly_initialised(
        torch.tensor([[1, 10, 10, 10, 2, 2]]),
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=64,
        num_attention_heads=4,
    )
    assert np.abs(trace[Q].values).max() < 1e-3
    for factor in (0.0, 2.0):
        wrong = changed(trace, times(factor), Q)
        for name, accepted in (("deepspeed-zero2", True), ("deepspeed-zero3", False)):
            rival = BY_NAME[name]
            assert rival.accepts(rival.shapes[0], trace, wrong) is accepted


def test_at_its_own_size_twinkles_bound_accepts_that_attention_has_no_gradient() -> None:
    trace = freshly_initialised(
        torch.randint(0, 256, (1, 769), generator=torch.Generator().manual_seed(0)),
        vocab_size=256,
        num_hidden_layers=1,
        hidden_size=128,
        intermediate_size=512,
        num_attention_heads=8,
    )
    rival = BY_NAME["twinkle"]
    assert rival.accepts(rival.shapes[0], trace, changed(trace, times(0.0), "grad."))


def test_rules_of_others_are_scored_on_the_same_mutants(harness_pool: RankPool) -> None:
    batch = draw(REQUEST, harness_pool.size)
    few = [rival for rival in RIVALS if rival.name in ("accelerate", "yunchang")]
    rivalry = contest([BANK["B24"], BANK["B94"]], batch[:2], harness_pool, few)
    by_name = {standing.name: standing for standing in rivalry.standings}
    # One misreports the loss, the other crashes, which nobody can miss.
    assert by_name["this harness"].on_generated == ["B24", "B94"]
    assert by_name["accelerate"].on_generated == ["B94"]
    assert by_name["this harness"].false_alarms == []
