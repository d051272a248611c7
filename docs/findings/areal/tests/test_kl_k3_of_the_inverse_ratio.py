# Copyright 2026 The AReaL Contributors
# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling by a KL estimator keeps the tokens that the help of `metric` says it keeps.

Modules are loaded without what the packages above them start, so that torch is enough.
"""

import importlib.util
import sys
import types

import pytest
import torch

UPPER = 0.5
# Both estimators of k3 keep a ratio of 1; of the others each keeps some that the other rejects.
RATIOS = torch.tensor([0.25, 0.35, 0.9, 1.0, 1.2, 2.0, 3.0])
DOCUMENTED = {
    "kl_k1": RATIOS.log(),
    "kl_k2": 0.5 * RATIOS.log().square(),
    "kl_k3": RATIOS - RATIOS.log() - 1,
}


@pytest.fixture(scope="module")
def modules():
    root = importlib.util.find_spec("areal").submodule_search_locations[0]
    stubs = {name: types.ModuleType(name) for name in ("ray", "numba")}
    stubs["ray"].remote = stubs["numba"].njit = lambda of: of
    for name in ("areal", "areal.infra"):
        stubs[name] = types.ModuleType(name)
        stubs[name].__path__ = [root + name.removeprefix("areal").replace(".", "/")]
    with pytest.MonkeyPatch.context() as patch:
        for name, stub in stubs.items():
            patch.setitem(sys.modules, name, stub)
        from areal.api.cli_args import RejectionSamplingConfig
        from areal.utils.functional import apply_rejection_sampling

        yield RejectionSamplingConfig, apply_rejection_sampling


@pytest.mark.parametrize("metric", DOCUMENTED)
def test_tokens_are_kept_as_documented(modules, metric):
    config, apply = modules
    mask = torch.ones(len(RATIOS)).bool()
    kept = apply(
        RATIOS.log(),
        torch.zeros(len(RATIOS)),
        mask,
        torch.tensor([0, len(RATIOS)]),
        config(metric=metric, upper=UPPER),
    ).loss_mask.bool()
    assert kept.tolist() == (DOCUMENTED[metric] <= UPPER).tolist()
