"""Weights from the seed: the same numbers on every torch version, platform and rank."""

import math
from collections.abc import Iterator

import numpy as np
import torch

from harness.case import Case

TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

# Large enough that the losses of single tokens differ by nats and that attention is far from
# uniform: a model at its usual initialisation predicts ln(vocab) whatever is done to its input.
LOGIT_SPREAD = 1.5
ATTENTION_GAIN = 1.6
BIAS = 0.5


def parameter_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and standard deviation of every parameter, in execution order."""
    hidden = case.heads * case.head_dim
    wide = 2 * hidden
    q_size, kv_size = case.heads * case.head_dim, case.kv_heads * case.head_dim
    fan_in, wide_fan_in = 1 / math.sqrt(hidden), 1 / math.sqrt(wide)
    embed_std = LOGIT_SPREAD * fan_in if case.tied else 1.0
    yield "embed", (case.vocab, hidden), embed_std
    for i in range(case.layers):
        yield f"layers.{i}.attn_norm", (hidden,), 0.0
        yield f"layers.{i}.q", (q_size, hidden), ATTENTION_GAIN * fan_in
        yield f"layers.{i}.k", (kv_size, hidden), ATTENTION_GAIN * fan_in
        yield f"layers.{i}.v", (kv_size, hidden), fan_in
        if case.model == "qwen2":
            yield f"layers.{i}.q_bias", (q_size,), BIAS
            yield f"layers.{i}.k_bias", (kv_size,), BIAS
            yield f"layers.{i}.v_bias", (kv_size,), BIAS
        if case.model == "qwen3":
            yield f"layers.{i}.q_norm", (case.head_dim,), 0.0
            yield f"layers.{i}.k_norm", (case.head_dim,), 0.0
        yield f"layers.{i}.o", (hidden, q_size), fan_in
        yield f"layers.{i}.mlp_norm", (hidden,), 0.0
        yield f"layers.{i}.gate", (wide, hidden), fan_in
        yield f"layers.{i}.up", (wide, hidden), fan_in
        yield f"layers.{i}.down", (hidden, wide), wide_fan_in
    yield "norm", (hidden,), 0.0
    if not case.tied:
        yield "head", (case.vocab, hidden), LOGIT_SPREAD * fan_in


def seeded_weights(case: Case, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Every parameter, rounded to the case's dtype and then held in `dtype`.

    The oracle runs in fp64 on weights that the case's own dtype can represent, so that what
    differs between the two is arithmetic and not the starting point.
    """
    weights = {}
    for (name, std), values in zip(_spreads(case), _uniform(case, case.seed), strict=True):
        # A uniform variable on [-1, 1) has variance 1/3. Norms sit around one, never at one.
        weights[name] = values * (std * math.sqrt(3.0)) if std else 1.0 + 0.3 * values
    if case.nudge:
        for name, direction in seeded_direction(case).items():
            weights[name] += case.nudge * direction
    return {
        name: values.to(TORCH_DTYPES[case.dtype]).to(dtype) for name, values in weights.items()
    }


def seeded_direction(case: Case) -> dict[str, torch.Tensor]:
    """Where `nudge` points: every element of every parameter, between -1 and 1."""
    # Seeds of cases end where the sign bit would be; with it set no case has this one.
    numbers = _uniform(case, case.seed | 1 << 63)
    return {name: values for (name, _), values in zip(_spreads(case), numbers, strict=True)}


def _spreads(case: Case) -> Iterator[tuple[str, float]]:
    return ((name, std) for name, _, std in parameter_shapes(case))


def _uniform(case: Case, key: int) -> Iterator[torch.Tensor]:
    """Numbers in [-1, 1) in the shape of each parameter."""
    shapes = [shape for _, shape, _ in parameter_shapes(case)]
    sizes = [math.prod(shape) for shape in shapes]
    # Raw counter-based bits and one multiplication: no distribution code whose stream a library
    # may change, no math library whose last bit depends on the machine.
    bits = np.random.Philox(key=key).random_raw(sum(sizes))
    uniform = torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0)
    return (values.view(shape) for values, shape in zip(uniform.split(sizes), shapes, strict=True))
