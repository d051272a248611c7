"""How much error is allowed, and why: the only place in the project where a tolerance stands.

Plain training in the case's own dtype, the *baseline*, makes an error too: its distance to the
fp64 oracle on the same weights. A candidate does the same arithmetic in another order, so its
error may be a small multiple of that, tensor by tensor and slice by slice, and not more.

`allowed = times x max(own, noise x scale) + units x rounding x magnitude`, per slice (a row of a
weight, a token of an activation), where

    magnitude  the largest oracle value in the slice
    scale      the geometric mean of the slice's magnitude and the whole tensor's: a small slice
               carries roundings of its own and of the large terms that cancelled in it
    own        the baseline's largest error in the slice
    noise      the baseline's relative error over the whole tensor, or the median over the tensors
               of the same kind where that is larger: a few numbers may be exact by luck
    rounding   half a unit in the last place: what writing the oracle down in this dtype costs

The errors of many elements average out, so what is typical of a tensor is known better than what
is extreme. Below fp64 each tensor is therefore judged as a whole as well, by root mean squares:

`allowed on the whole = times on the whole x max(own, noise x size) + units x rounding x size`

It is the finer of the two where every element is wrong by a little, or by a factor. Any single
element may also be off by this whole-tensor amount. Where it is not well below the tensor's own
size, zero could not be told from the truth, and the tensor counts as not judged.

All factors were measured: see `TIMES`, and docs/tolerances.md.

In fp64 the baseline is the oracle and has no error of its own. There the whole chain, forward,
backward and reduction, must hold to a fixed 1e-12 of the slice.

A rare case multiplies roundings by more than that allows, or plain training was exact by luck. So
before anybody is blamed, in any dtype, it is asked again, row by row, below fp64 also with fused
attention, in fp32 twice more from weights A_ROUNDING_AWAY, and in any dtype on the device that the
candidate ran on; all that it says counts as further baselines. In fp64 no two computations may
differ by more than CONDITIONING times the budget: one of them would be wrong.

A gradient that is zero in exact arithmetic, as the oracle shows, has no magnitude to be measured
by: kernels leave a few roundings of the largest gradient in it. So many are allowed, and on top of
them what plain training itself leaves in it. Where all gradients are so small beside the loss, as
of a balanced router in a batch without targets, they are roundings of numbers of its size.
"""

import re
from dataclasses import dataclass

FP64_RELATIVE = 1e-12
# Plain training computed in two ways in fp64 differed by 0.08 of the budget in the worst of 600
# random cases, and by twice the budget in the worst of all that were ever generated; what is
# wrong by design differs by far more.
CONDITIONING = 1000.0
# Below this share of the largest tensor of its kind, a tensor of the oracle is zero.
ZERO = 1e-14

# Half a unit in the last place, relative.
ROUNDING = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-12}

# In fp32: weights are of the order of one, and half of them are rounded to a neighbour. Over 120
# cases plain training from there erred 1.3 times as much.
A_ROUNDING_AWAY = 2.0**-25

# A tensor that is zero by mistake has strayed by 1.0 of itself, one that is halved by 0.5. What
# may stray that far cannot be judged; in a run that is to pass, that is so for few gradients.
MOST_SLACK = 0.8
SLACK_THAT_SEES_HALF = 0.4
MOST_WEAK = 0.25

# Plain training on the device of a candidate may stray by so many budgets; by more, the device is
# at fault itself. Attention in three passes of TF32, emulated, strays by 2.
STRAIN = 8.0

# What is compared for a description is already known to differ. A fit is clean, and two numbers
# are alike, when what is left is small beside them; it decides how a failure is called, never
# whether it is one.
CLEAN = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 0.05, "fp16": 0.01}

# A loss is differenced over this step to either side, and over twice of it. Chosen by measurement:
# longer, and what the step leaves out outweighs what rounding puts in; shorter, the reverse. Over
# 300 generated cases the slope missed the gradient by at most what it changed from one step to the
# other, and 0.4 units of the loss's rounding.
SLOPE_STEP = 2.0**-18
SLOPE_UNITS = 8.0


# What leans to one side in every case shows in the mean of many, where a single case allows much
# more. A mean leans if it is off by so many of its own deviations, and by so many times what
# writing a number down may cost; fewer tensors than that tell no deviation. Correct steps leaned
# in none of 9000 campaigns of 25 or 60 cases, drawn from 1800 cases of bf16, fp16 and fp32.
# Gradients that were 1.005 of themselves in bf16 did in all.
LEAN_DEVIATIONS = 3.0
LEAN_UNITS = 2.0
LEAN_LEAST = 20


# A golden that is computed again on another processor, or by another version of a kernel, may
# differ in the last bits. Up to here, as a share of its tensor, nothing was changed on purpose.
DRIFT = 1e-13


@dataclass(frozen=True, slots=True)
class Exact:
    """Equal to the baseline in every bit."""

    why: str


@dataclass(frozen=True, slots=True)
class Reduced:
    """A small multiple of the baseline's own error."""

    why: str


Budget = Exact | Reduced

# fp64 has the factor of fp32; it counts only where plain training was asked again. The others were
# chosen by measurement, somewhat above the largest multiple in 1300 generated cases of each dtype,
# sp 1 to 4, dp 1 and 2, both dialects. fp32 needs more than half precisions: there nearly all
# error comes from the order of sums, which is what differs, while in bf16 and fp16 it comes from
# storing intermediate tensors, which both paths do alike.
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
    """The smallest mean lean that is told, as a share of the tensor."""
    return LEAN_UNITS * UNITS[dtype] * ROUNDING[dtype]


def budget_for(key: str) -> Budget:
    """The first line of the table that fits; an unknown key is judged like an activation."""
    for pattern, budget in BUDGETS:
        if re.fullmatch(pattern, key):
            return budget
    return Reduced("not in the table")


def kind_of(key: str, dims: int) -> str:
    """Tensors of one kind lend each other their noise."""
    if key.startswith("grad."):
        return "gradient"
    if key in ("nll", "loss"):
        return "loss"
    return "forward" if dims > 1 else "metric"


def lends_to(key: str, dims: int) -> tuple[str, ...]:
    """The kinds that a tensor lends its noise to.

    What is emitted only in a traced run borrows from losses and lends nothing to what is compared
    in every run: whether a run is traced changes no verdict.
    """
    kind = kind_of(key, dims)
    return (kind, "forward", "metric") if kind == "loss" else (kind,)
