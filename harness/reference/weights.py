"""Makes weights from the seed, with equal bits on every torch version, platform and rank."""

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

# Weights are so large that the losses of tokens differ by nats and attention is far from uniform.
# With the usual initialisation every loss is near ln(vocab), so that many bugs would not show.
LOGIT_SPREAD = 1.5
ATTENTION_GAIN = 1.6
BIAS = 0.5


def parameter_shapes(case: Case) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Yield name, shape and standard deviation of every parameter, in execution order.

    A standard deviation of zero marks the weight of a norm.
    """
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
    """Return every parameter by name, rounded to the case's dtype and then held in `dtype`.

    The oracle runs in fp64 on weights that the case's own dtype can represent, so that oracle
    and baseline differ in arithmetic only.
    """
    weights = {}
    for (name, std), values in zip(_names_and_stds(case), _uniform(case, case.seed), strict=True):
        # A uniform variable on [-1, 1) has variance 1/3. The weights of norms spread around one.
        weights[name] = values * (std * math.sqrt(3.0)) if std else 1.0 + 0.3 * values
    if case.nudge:
        for name, direction in seeded_direction(case).items():
            weights[name] += case.nudge * direction
    return {
        name: values.to(TORCH_DTYPES[case.dtype]).to(dtype) for name, values in weights.items()
    }


def seeded_direction(case: Case) -> dict[str, torch.Tensor]:
    """Return the direction of `nudge`: a number in [-1, 1) for each element of each parameter."""
    # The seed of a case has 63 bits, so no case has weights from this key.
    numbers = _uniform(case, case.seed | 1 << 63)
    return {name: values for (name, _), values in zip(_names_and_stds(case), numbers, strict=True)}


def _names_and_stds(case: Case) -> Iterator[tuple[str, float]]:
    return ((name, std) for name, _, std in parameter_shapes(case))


def _uniform(case: Case, key: int) -> Iterator[torch.Tensor]:
    """Return numbers in [-1, 1) in the shape of each parameter."""
    shapes = [shape for _, shape, _ in parameter_shapes(case)]
    sizes = [math.prod(shape) for shape in shapes]
    # Raw counter-based bits and one multiplication give equal bits everywhere. The distributions
    # of a library may change, and the last bit of a math function depends on the machine.
    bits = np.random.Philox(key=key).random_raw(sum(sizes))
    uniform = torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0)
    return (values.view(shape) for values, shape in zip(uniform.split(sizes), shapes, strict=True))
