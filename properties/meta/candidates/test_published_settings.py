"""The settings that cases of a library state are those for which plain training has a formula."""

from collections.abc import Mapping
from typing import Any

import pytest

from harness.candidates.published.areal import advantages as of_areal
from harness.candidates.published.areal.settings import REWARDS
from harness.candidates.published.openrlhf import formulas as of_openrlhf
from harness.candidates.published.openrlhf import settings as openrlhf
from harness.candidates.published.skyrl import formulas as of_skyrl
from harness.candidates.published.skyrl.settings import POLICY, TEMPERED
from harness.candidates.published.twinkle import formulas as of_twinkle
from harness.candidates.published.twinkle import settings as twinkle
from harness.candidates.published.verl import formulas as of_verl
from harness.candidates.published.verl.settings import ACTOR, CRITIC


@pytest.mark.parametrize(
    ("values", "formulas"),
    [
        (REWARDS["kl_estimator"], of_areal.KLS),
        (ACTOR["loss_mode"], of_verl.LOSSES),
        (ACTOR["kl_loss_type"], of_verl.KLS),
        (ACTOR["loss_agg_mode"], of_verl.MEANS),
        (CRITIC["loss_agg_mode"], of_verl.MEANS),
        (openrlhf.ACTOR["policy_loss_type"], of_openrlhf.RATIOS),
        (openrlhf.ACTOR["loss_agg_mode"], of_openrlhf.MEANS),
        (openrlhf.ACTOR["kl_loss"][1:], of_openrlhf.KLS),
        (POLICY["policy_loss_type"], of_skyrl.LOSSES),
        (POLICY["kl_estimator_type"], of_skyrl.KLS),
        (TEMPERED["loss_reduction"], of_skyrl.MEANS),
        (twinkle.GRPO["loss"], of_twinkle.GRPO),
        (twinkle.PPO["loss_agg_mode"], of_twinkle.MEANS),
        (twinkle.DPO["loss_type"], of_twinkle.DPO),
    ],
)
def test_each_value_of_a_setting_has_its_formula(
    values: tuple[str, ...], formulas: Mapping[str, Any]
) -> None:
    assert values == tuple(formulas)
