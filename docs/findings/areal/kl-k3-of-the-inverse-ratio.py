"""rejection_sampling.metric kl_k3 is 1/r + log(r) - 1, and not r - log(r) - 1 as documented: other
tokens are rejected

areal 1.0.4: tokens whose ratio r of proximal to behavior policy is given, and a bound of 0.5. With
--control the metric is kl_k2, of which r and 1/r are alike.

pip install areal==1.0.4; needs no GPU, and no second rank, for the bug shows on one. Exit status
1 if it shows.
"""

import importlib.util
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path

import torch

METRIC = "kl_k2" if "--control" in sys.argv else "kl_k3"
UPPER = 0.5
RATIOS = torch.tensor([0.25, 0.35, 1.0, 2.0, 3.0])


def published():
    """The function and its configuration, without what their packages start."""
    ray, numba = types.ModuleType("ray"), types.ModuleType("numba")
    ray.remote = numba.njit = lambda of: of
    sys.modules.update(ray=ray, numba=numba)
    place = Path(importlib.util.find_spec("areal").submodule_search_locations[0])
    for name in ("areal", "areal.infra"):
        package = types.ModuleType(name)
        package.__path__ = [str(place.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    # The library logs the time to what is stdout now.
    with redirect_stdout(sys.stderr):
        from areal.api.cli_args import RejectionSamplingConfig
        from areal.utils.functional import apply_rejection_sampling

    return RejectionSamplingConfig, apply_rejection_sampling


def main():
    config, apply = published()
    proximal, behave = RATIOS.log(), torch.zeros(len(RATIOS))
    mask, rows = torch.ones(len(RATIOS)).bool(), torch.tensor([0, len(RATIOS)])
    got = apply(proximal, behave, mask, rows, config(metric=METRIC, upper=UPPER)).loss_mask
    # As the help of `metric` has them.
    documented = {
        "kl_k2": 0.5 * RATIOS.log().square(),
        "kl_k3": RATIOS - RATIOS.log() - 1,
    }
    expected = documented[METRIC] <= UPPER
    print(f"ratios r               {shown(RATIOS)}")
    print(f"{METRIC} as documented    {shown(documented[METRIC])}")
    print(f"kept: expected         {told(expected)}")
    print(f"kept: got              {told(got)}")
    return int(not torch.equal(got.bool(), expected))


def shown(numbers):
    return " ".join(f"{number:5.2f}" for number in numbers.tolist())


def told(kept):
    return " ".join(f"{'yes' if each else 'no':>5}" for each in kept.tolist())


if __name__ == "__main__":
    sys.exit(main())
