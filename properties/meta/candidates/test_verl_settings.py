"""The settings that cases of verl state are those for which plain training has a formula."""

from harness.candidates.published.verl import formulas, settings


def test_each_value_of_a_setting_has_its_formula() -> None:
    assert settings.ACTOR["loss_mode"] == tuple(formulas.LOSSES)
    assert settings.ACTOR["kl_loss_type"] == tuple(formulas.KLS)
    assert settings.MEANS["loss_agg_mode"] == tuple(formulas.MEANS)
