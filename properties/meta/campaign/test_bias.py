"""What is off by too little to be told in one case is found over many."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.campaign.bias import Leaning, Leanings
from harness.case import parse
from harness.cli import main
from harness.compare import Comparison, KeyResult, Verdict
from harness.compare.budget import LEAN_LEAST, least_lean
from harness.conformance import examined_record
from harness.conformance.examined import Examined
from harness.conformance.stage import Stage
from properties.helpers.places import PLANTED

pytest_plugins = ["properties.helpers.own_pool"]

LEANS = st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=30)


def leaning(leans: list[float]) -> Leaning:
    made = Leaning()
    for lean in leans:
        made.add(lean)
    return made


@given(LEANS, LEANS)
def test_parts_add_up_in_any_order(one: list[float], other: list[float]) -> None:
    assert leaning(one) + leaning(other) == leaning([*other, *one])
    assert (leaning(one) + leaning(other)).is_sound()


def scattered(mean: float, by: float, count: int) -> list[float]:
    random = Random(0)
    return [random.gauss(mean, by) for _ in range(count)]


@pytest.mark.parametrize(
    ("leans", "tells"),
    [
        (scattered(0.005, 0.003, LEAN_LEAST), True),
        # So few tell no deviation.
        (scattered(0.005, 0.003, LEAN_LEAST - 1), False),
        # By chance.
        (scattered(0.005, 0.05, LEAN_LEAST), False),
        # As little as rounding may do to all of them.
        (scattered(0.9 * least_lean("bf16"), 1e-6, LEAN_LEAST), False),
        (scattered(-1.1 * least_lean("bf16"), 1e-6, LEAN_LEAST), True),
    ],
)
def test_a_mean_is_told_that_is_no_chance_and_no_rounding(leans: list[float], tells: bool) -> None:
    told = [*Leanings({"bf16": {"grad.head": leaning(leans)}}).told()]
    assert bool(told) is tells


def test_what_leans_in_a_published_step_is_told_over_all_stages() -> None:
    stages = {"goldens": Stage(), "sp 2": Stage()}
    examined = Examined("a.b", "a@1", {}, stages=stages)
    case = parse("case/1 rows=3:111 sp=2 dtype=bf16")
    for number, lean in enumerate(scattered(0.005, 0.003, LEAN_LEAST)):
        key = KeyResult("grad.head", 4, 0, 0.5, 0.1, lean=lean)
        seen = Comparison(case=case, candidate="a.b", verdict=Verdict.WITHIN, keys=(key,))
        assert examined.leans == []
        stages["goldens" if number % 2 else "sp 2"].add(seen)
    (told,) = examined.leans
    assert told.startswith("grad.head is 1.00")
    assert examined_record(examined)["leans"] == [told]


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_gradients_that_are_a_hundredth_off_in_every_case_are_no_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    planted = f"{PLANTED / 'false_passes.py'}:"
    names = "native-gather", f"{planted}HUNDREDTH", f"{planted}HALF_A_HUNDREDTH"
    asked = (
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
    assert main(["check", *asked, *candidates]) == 1
    written = capsys.readouterr()
    right, one, every = (json.loads(written.out)["candidates"][name] for name in names)
    assert right["verdict"] == "WITHIN"
    assert right["leans"] == []
    # No case fails, and all of them do.
    for tally in (one, every):
        assert {*tally["verdicts"]} <= {"EQUAL", "WITHIN"}
        assert tally["verdict"] == "DIVERGED"
    assert [text.partition(" is ")[0] for text in one["leans"]] == ["grad.head"]
    assert len(every["leans"]) > 8
    assert "is off by the same in every case, and by too little to be told in one" in written.err
