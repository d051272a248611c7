"""How much error is allowed, and why. This is the only file of the project with tolerances.

Plain training in the case's own dtype, the *baseline*, makes an error too: its distance to the
fp64 oracle on the same weights. A candidate does the same arithmetic in another order, so its
error may be a small multiple of the baseline's, in each slice of each tensor.

`allowed = times x max(own, noise x scale) + units x rounding x magnitude`, per slice (a row of a
weight, a token of an activation), where

    magnitude  the largest oracle value in the slice
    scale      the geometric mean of the slice's magnitude and the whole tensor's: a small slice
               carries roundings of its own and of the large terms that cancelled in it
    own        the baseline's largest error in the slice
    noise      the baseline's relative error over the whole tensor, or the median over the tensors
               of the same kind if that is larger: a few numbers may be exact by luck
    rounding   half a unit in the last place: the error of storing the oracle in this dtype

The errors of many elements average out, so the typical error of a tensor is known better than its
largest. So below fp64 each tensor is judged a second time, as a whole, by root mean squares:

`allowed on the whole = times on the whole x max(own, noise x size) + units x rounding x size`

This finds tensors in which every element is a little wrong, or wrong by a factor. Any single
element may also be off by this amount. If the amount is close to the tensor's own size, a zero
tensor would pass, so the tensor counts as not judged.

All factors were measured: see `TIMES`, and docs/tolerances.md.

In fp64 the baseline is the oracle and has no error of its own. There the whole chain, forward,
backward and reduction, must hold to a fixed 1e-12 of the slice.

In a rare case roundings grow by more than that allows, or plain training was exact by luck. So
before a candidate is blamed, plain training is computed in other ways, and all results count as
further baselines: row by row; below fp64 also with fused attention; in fp64 and fp32 twice more
from weights that are moved by a rounding, on rows that are padded further; and on the device that
the candidate ran on. A recipe is run again with rows padded further and in another order, and, in
every dtype, from weights that are moved by a rounding; in fp32 then also with fused attention and
further padding; below fp64 also from weights that are moved farther, where its error is the
distance from its own run in fp64. In fp64 no two of these may differ by more than CONDITIONING
times the budget: one of them would be wrong.

In fp64 this happens already if a candidate comes CLOSE to its budget: what a rounding of the
weights does to a gradient is its condition number, which 1e-12 of the slice does not know.

A gradient that is zero in exact arithmetic, as the oracle shows, has no magnitude to be measured
by: kernels leave a few roundings of the largest gradient in it. As many are allowed, and in
addition what plain training itself leaves in it. If all gradients are that small beside the loss,
such as those of a balanced router in a batch without targets, or of a pair of equal rows, they are
roundings of numbers of the size of the loss, or of the order of one if the loss is zero too; below
fp64 `own` is then the baseline's largest error in any gradient, for it may have nothing left in a
slice, or in a whole tensor. A loss may also cancel alone, as where advantages have a mean of zero:
then it is a sum of numbers of the size of the gradients.
"""

import re
from dataclasses import dataclass

FP64_RELATIVE = 1e-12
# Two ways to compute plain training in fp64 differed by 0.08 of the budget in the worst of 600
# random cases, and by twice the budget in the worst case that was ever generated. A wrong
# reference differs by far more.
CONDITIONING = 1000.0
# In fp64 few cases use more than this share of a budget, 22 in 100,000: they are ill-conditioned.
CLOSE = 0.3
# A tensor of the oracle is zero if it is below this share of the largest tensor of its kind.
ZERO = 1e-14

# Half a unit in the last place, relative.
ROUNDING = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-12}

# How far weights are moved to round them differently: a rounding, and in fp32 half of one. Weights
# are of the order of one, so that half of those in fp32 are rounded to a neighbour. Over 120 cases
# plain training from there erred 1.3 times as much.
ROUNDING_NUDGE = {**ROUNDING, "fp32": ROUNDING["fp32"] / 2}

# A tensor that is zero by mistake has strayed by 1.0 of itself, one that is halved by 0.5. A
# tensor whose budget is more than MOST_SLACK of its size is weak: it cannot be judged. In a case
# that is judged, at most a share of MOST_WEAK of the gradients is weak, and the finest budget of
# a gradient shows that it is halved.
MOST_SLACK = 0.8
SLACK_THAT_SEES_HALF = 0.4
MOST_WEAK = 0.25

# How many budgets plain training may use on the device of a candidate; if it uses more, the device
# itself is at fault. Attention in three passes of TF32, emulated, uses 2.
MOST_BUDGETS_OF_DEVICE = 8.0

# A description of a failure calls two numbers alike, and a fit clean, if the rest is below this
# share of them. It decides what a failure is called, never whether it is one.
CLEAN = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 0.05, "fp16": 0.01}

# A slope is the difference of losses over this step to either side, and over twice this step. The
# step was chosen by measurement: a longer one has a larger error of the linear model, a shorter
# one a larger error of rounding. Over 300 generated cases the slope missed the gradient by at most
# its change from one step to the other, and 0.4 units of the loss's rounding.
SLOPE_STEP = 2.0**-18
SLOPE_UNITS = 8.0


# A tensor that leans to one side in every case shows it in the mean over many cases, although a
# single case allows much more. A mean leans if it is off by so many of its own deviations and by
# so many units of rounding; fewer than LEAN_LEAST tensors give no deviation. Correct steps leaned
# in none of 9000 campaigns of 25 or 60 cases, drawn from 1800 cases of bf16, fp16 and fp32.
# Gradients that were multiplied by 1.005 in bf16 leaned in all.
LEAN_DEVIATIONS = 3.0
LEAN_UNITS = 2.0
LEAN_LEAST = 20


# A golden that is computed again on another processor, or by another version of a kernel, may
# differ in the last bits. A change up to this share of its tensor is such drift.
DRIFT = 1e-13


@dataclass(frozen=True, slots=True)
class Exact:
    """The budget of a tensor that must equal the baseline in every bit."""

    why: str


@dataclass(frozen=True, slots=True)
class Reduced:
    """The budget of a tensor that may have a small multiple of the baseline's own error."""

    why: str


Budget = Exact | Reduced

# fp64 has the factor of fp32; it is used only if there is a baseline beside the oracle. The others
# were chosen by measurement, somewhat above the largest multiple in 1300 generated cases of each
# dtype, sp 1 to 4, dp 1 and 2, both dialects. fp32 needs more than half precisions: there nearly
# all error comes from the order of sums, in which candidate and baseline differ. In bf16 and fp16
# it comes from storing intermediate tensors, which both do alike.
TIMES = {"fp64": 16.0, "fp32": 16.0, "bf16": 8.0, "fp16": 8.0}
TIMES_ON_THE_WHOLE = {"fp32": 8.0, "bf16": 4.0, "fp16": 4.0}
UNITS = {"fp64": 16.0, "fp32": 8.0, "bf16": 1.0, "fp16": 1.0}

BUDGETS: tuple[tuple[str, Budget], ...] = (
    (r"ids|positions|labels", Exact("whole numbers are moved, never computed")),
    (r"embed|layers\..*|logits|nll", Reduced("kernels order their sums by shape")),
    (r"weight", Reduced("one count divides another in another order")),
    (r"loss", Reduced("partial sums are added in another order")),
    (r"grad\..*", Reduced("partial sums are added in another order, over ranks as well")),
)


def least_lean(dtype: str) -> float:
    """Return the smallest mean lean that counts, as a share of the tensor."""
    return LEAN_UNITS * UNITS[dtype] * ROUNDING[dtype]


def budget_for(key: str) -> Budget:
    """Return the first budget of the table that fits; an unknown key is an activation."""
    for pattern, budget in BUDGETS:
        if re.fullmatch(pattern, key):
            return budget
    return Reduced("not in the table")


def kind_of(key: str, dims: int) -> str:
    """Return the kind of a tensor; tensors of one kind share their noise."""
    if key.startswith("grad."):
        return "gradient"
    if key in ("nll", "loss"):
        return "loss"
    return "forward" if dims > 1 else "metric"


def kinds_lent_to(key: str, dims: int) -> tuple[str, ...]:
    """Return the kinds that use the noise of a tensor.

    Losses lend their noise to tensors that only a traced run has, but not the other way round.
    So a traced run judges the required keys exactly as any other run does.
    """
    kind = kind_of(key, dims)
    return (kind, "forward", "metric") if kind == "loss" else (kind,)
