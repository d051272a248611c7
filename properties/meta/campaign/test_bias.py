"""An error that is too small to see in one case is found over many."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.bias import Leaning, Leanings
from harness.case import parse
from harness.cli import main
from harness.compare import KeyResult, Verdict
from harness.compare.budget import LEAN_LEAST, least_lean
from harness.conformance import examined_record
from harness.conformance.examined import Examined
from harness.conformance.stage import Stage
from properties.helpers.comparisons import comparison_with
from properties.helpers.places import PLANTED

pytest_plugins = ["properties.helpers.own_pool"]

LEANS = st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=30)


def leaning_of(leans: list[float]) -> Leaning:
    leaning = Leaning()
    for lean in leans:
        leaning.add(lean)
    return leaning


@given(LEANS, LEANS)
def test_leanings_of_parts_add_up_in_any_order(one: list[float], other: list[float]) -> None:
    assert leaning_of(one) + leaning_of(other) == leaning_of([*other, *one])
    assert (leaning_of(one) + leaning_of(other)).is_sound()


def scattered(mean: float, by: float, count: int) -> list[float]:
    random = Random(0)
    return [random.gauss(mean, by) for _ in range(count)]


@pytest.mark.parametrize(
    ("leans", "is_reported"),
    [
        (scattered(0.005, 0.003, LEAN_LEAST), True),
        # There are too few leans to estimate their deviation.
        (scattered(0.005, 0.003, LEAN_LEAST - 1), False),
        # The mean is within chance.
        (scattered(0.005, 0.05, LEAN_LEAST), False),
        # Rounding alone may cause so small a mean.
        (scattered(0.9 * least_lean("bf16"), 1e-6, LEAN_LEAST), False),
        (scattered(-1.1 * least_lean("bf16"), 1e-6, LEAN_LEAST), True),
    ],
)
def test_a_mean_lean_is_reported_if_it_is_neither_chance_nor_rounding(
    leans: list[float], is_reported: bool
) -> None:
    reports = [*Leanings({"bf16": {"grad.head": leaning_of(leans)}}).lines()]
    assert bool(reports) is is_reported


def test_a_published_step_is_checked_for_leans_over_all_its_stages() -> None:
    stages = {"goldens": Stage(), "sp 2": Stage()}
    examined = Examined("a.b", "a@1", {}, stages=stages)
    case = parse("case/1 rows=3:111 sp=2 dtype=bf16")
    for number, lean in enumerate(scattered(0.005, 0.003, LEAN_LEAST)):
        key = KeyResult("grad.head", 4, 0, 0.5, 0.1, lean=lean)
        comparison = comparison_with(
            case=case, candidate="a.b", verdict=Verdict.WITHIN, keys=(key,)
        )
        assert examined.leans == []
        stages["goldens" if number % 2 else "sp 2"].add(comparison)
    (report,) = examined.leans
    assert report.startswith("grad.head is 1.00")
    assert examined_record(examined)["leans"] == [report]


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_gradients_that_are_a_hundredth_off_in_every_case_diverge(
    capsys: pytest.CaptureFixture[str],
) -> None:
    planted = f"{PLANTED / 'false_passes.py'}:"
    names = "native-gather", f"{planted}HUNDREDTH", f"{planted}HALF_A_HUNDREDTH"
    options = (
        "--cases",
        "30",
        "--sp",
        "2",
        "--dp",
        "1",
        "--dtype",
        "bf16",
        "--set",
        "tied=0",
        "--json",
    )
    candidates = [word for name in names for word in ("--candidate", name)]
    assert main(["check", *options, *candidates]) == 1
    written = capsys.readouterr()
    right, one, every = (json.loads(written.out)["candidates"][name] for name in names)
    assert right["verdict"] == "WITHIN"
    assert right["leans"] == []
    # No single case fails, and all of them together do.
    for tally in (one, every):
        assert {*tally["verdicts"]} <= {"EQUAL", "WITHIN"}
        assert tally["verdict"] == "DIVERGED"
    assert [text.partition(" is ")[0] for text in one["leans"]] == ["grad.head"]
    assert len(every["leans"]) > 8
    assert "is off by the same in every case, and by too little to show in one" in written.err
