"""The table of gradients shows each as a multiple of the expected one, with ranks' shares."""

import re
from dataclasses import replace

import torch

from harness.case import parse
from harness.compare import compare
from harness.compare.scale import Scale
from harness.reference import reference
from properties.helpers.comparisons import changed
from properties.helpers.drawn import pictured
from properties.meta.diagnosis.test_anomalies import shown
from properties.meta.report.pages import page_of


def test_the_factor_of_all_gradients_and_the_shares_of_ranks_are_shown() -> None:
    failure = pictured(scale=Scale(0.5, "1/sp"))
    assert "Every gradient is 0.5 times the expected one, which is 1/sp." in page_of(failure)
    assert failure.inquiry.picture is not None
    shared = replace(failure.inquiry.picture, shares={"head": {0: 1.0, 1: 0.0}, "norm": {0: 1.0}})
    page = page_of(changed(failure, picture=shared))
    columns = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[-2:] for row in page.split("<tr")]
    assert ["once", "missing"] in columns
    assert ["once", "adds nothing"] in columns
    assert "share</th>" not in page_of(failure)


def test_a_gradient_of_the_other_sign_is_drawn_on_the_other_side() -> None:
    failure = pictured()
    assert failure.inquiry.picture is not None
    turned = replace(failure.inquiry.picture, ratios={"grad.head": -0.5})
    assert '<rect class="bar off" x="18.0" y="3" width="17.0"' in page_of(
        changed(failure, picture=turned)
    )


def test_a_gradient_that_should_be_zero_has_no_multiple() -> None:
    # With a window of 1 each token sees itself alone, so queries and keys learn nothing.
    case = parse("case/1 rows=3:111 heads=2 layers=1 vocab=8 sp=2 window=1 dtype=fp64")
    oracle = reference(case, torch.float64, traced=True)
    zeros = {"layers.0.q", "layers.0.k"}
    for key, text in (("head", "zero, as it should be"), ("layers.0.q", "it should be zero")):
        assembly = shown(case, {f"grad.{key}": lambda gradient: gradient + 1.0})
        failure = compare(case, "tampered", oracle, [oracle], assembly)
        assert failure.inquiry.picture is not None
        none = {key for key, ratio in failure.inquiry.picture.ratios.items() if ratio is None}
        assert none == {f"grad.{name}" for name in zeros}
        row = f'<th scope="row">layers.0.q</th><td class="number">{text}<'
        assert row in page_of(failure)
