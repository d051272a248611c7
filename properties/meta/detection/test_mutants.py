"""The bank of mutants: what it holds, and that the check finds and names its mutants."""

import re
from functools import cache
from typing import Any

import pytest

from harness.anomalies import ANOMALIES
from harness.campaign.case_source import draw
from harness.campaign.request import Request
from harness.candidates import locate
from harness.candidates.bank import STAGES, Benign, Mutant
from harness.candidates.own.benign import BANK as BENIGN
from harness.candidates.own.mutants import BANK, LEFT_OUT, NATIVE
from harness.candidates.own.mutants.alone import ALONE
from harness.candidates.own.mutants.called import CALLED
from harness.candidates.own.shares import step_of
from harness.candidates.registry import SHARES
from harness.case import Case, parse
from harness.detection import Trial, Trier
from harness.generation.situations.needs import UnknownNeed, lacking
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.alone import PROPERTIES

CATALOGUE = 270
REQUEST = Request(
    candidates=("native-gather",),
    sps=(1, 2, 4),
    dps=(1, 2),
    dtypes=("fp64", "fp32"),
    losses=("token-mean", "micro-mean", "row-mean"),
    count=200,
    seed=0,
)


def sample(keys: list[str], config: pytest.Config, first: int = 0) -> list[str]:
    """Return every thirtieth key; with --all return all."""
    return keys if config.getoption("--all") else keys[first::30]


@cache
def drawn(ranks: int, limits: str) -> list[Case]:
    return draw(REQUEST, ranks, limits)


def tried(
    entries: list[Mutant | Benign],
    pool: RankPool,
    *,
    count: int = 200,
    required_only: bool = False,
) -> list[Trial]:
    """Try each on cases within its limits."""
    trials = []
    for entry in entries:
        cases = drawn(pool.size, entry.limits)[:count]
        trier = Trier(cases=cases, session=Session(pool), required_only=required_only)
        trials.append(trier.attempt(entry))
    return trials


def can_show(mutant: Mutant, ranks: int) -> bool:
    """Whether enough cases that fit on so many ranks have what a mutant needs."""
    return not {"dp>1", "sp>1"} <= set(mutant.needs) or ranks >= 4


def test_the_bank_has_over_a_hundred_mutants_in_all_ten_stages() -> None:
    assert len(BANK) >= 100
    assert {mutant.stage for mutant in BANK.values()} == set(STAGES)
    assert len(STAGES) == 10


def test_over_forty_mutants_have_a_recipe_and_train_as_a_right_step_does() -> None:
    with_recipe = [mutant for mutant in BANK.values() if mutant.key not in NATIVE]
    assert len(with_recipe) >= 40
    entries: list[Mutant | Benign] = [*with_recipe]
    entries += [variant for variant in BENIGN.values() if variant.trains]
    for entry in entries:
        right = locate(f"{SHARES}:{entry.trains}")
        step: Any = entry.candidate
        plain = step_of(entry.trains).recipe
        assert (right.place, right.attribute) == (SHARES, entry.trains)
        assert step.recipe.loss == plain.loss
        assert step.recipe.columns == plain.columns
        assert step.limits == step_of(entry.trains).limits


def test_every_known_bug_has_a_mutant_or_a_reason_why_not() -> None:
    ids = {f"B{number:02d}" for number in range(1, CATALOGUE + 1)}
    in_bank = {key.rstrip("abcdefgh") for key in BANK}
    assert in_bank | LEFT_OUT.keys() == ids
    assert not in_bank & LEFT_OUT.keys()
    assert all(len(reason) > 20 for reason in LEFT_OUT.values())


@pytest.mark.parametrize("key", BANK)
def test_a_mutant_has_an_anomaly_a_sentence_threads_and_valid_needs(key: str) -> None:
    mutant = BANK[key]
    assert locate(f"mutants.{key}").load() is mutant.candidate
    assert mutant.anomaly in ANOMALIES
    assert mutant.anomaly != "unclassified"
    assert len(mutant.sentence) < 120
    assert mutant.threads
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+)?", thread) for thread in mutant.threads)
    # This raises an error if the needs name something that no case can have.
    lacking(parse("case/1 rows=3:111 sp=2"), mutant.needs)


def test_a_need_that_no_case_can_have_is_refused() -> None:
    with pytest.raises(UnknownNeed, match="needs=moon>1: name a situation, or a field"):
        lacking(parse("case/1 rows=3:111 sp=2"), ("moon>1",))


@pytest.mark.slow
def test_the_check_finds_every_mutant_and_names_nine_of_ten(
    harness_pool: RankPool, request: pytest.FixtureRequest
) -> None:
    keys = sample(list(BANK), request.config)
    chosen = [BANK[key] for key in keys if can_show(BANK[key], harness_pool.size)]
    trials = tried([*chosen], harness_pool)
    assert [trial.key for trial in trials if not trial.failed] == []
    # A mutant is killed only by cases that have what it needs.
    assert {t.key: t.unmet for t in trials if t.unmet} == {}
    wrong = [
        f"{t.key}: {t.named}, not {t.expected}"
        for t in trials
        if not t.named_right and t.named != CALLED.get(t.key, ("", ""))[0]
    ]
    assert len(wrong) <= 0.1 * len(trials), wrong


@pytest.mark.slow
def test_the_check_names_nine_of_ten_mutants_from_required_keys_alone(
    harness_pool: RankPool, request: pytest.FixtureRequest
) -> None:
    keys = sample(list(NATIVE), request.config, first=8)
    chosen = [BANK[key] for key in keys if can_show(BANK[key], harness_pool.size)]
    trials = tried([*chosen], harness_pool, required_only=True)
    wrong = [f"{t.key}: {t.named}, not {t.expected}" for t in trials if not t.named_right]
    assert len(wrong) <= 0.1 * len(trials), wrong


def test_nine_of_ten_mutants_have_their_name() -> None:
    wrong = [key for key, (name, _) in CALLED.items() if name != BANK[key].anomaly]
    assert len(wrong) <= 0.1 * len(BANK)


def test_the_list_of_misnamed_mutants_has_known_keys_and_other_names() -> None:
    assert CALLED.keys() <= BANK.keys()
    for key, names in CALLED.items():
        assert set(names) <= ANOMALIES.keys()
        assert set(names) != {BANK[key].anomaly}


@pytest.mark.slow
def test_no_benign_variant_is_flagged_or_refused(
    harness_pool: RankPool, request: pytest.FixtureRequest
) -> None:
    count = 200 if request.config.getoption("--all") else 2
    trials = tried([*BENIGN.values()], harness_pool, count=count)
    assert [f"{t.key}\n{t.explanation}" for t in trials if t.failed] == []
    refused = {t.key: t.verdicts for t in trials if t.verdicts.get("UNSUPPORTED")}
    # Rounding may hide what a recipe computes, and then the case is refused.
    assert all(BENIGN[key].trains for key in refused)
    passed = {t.key for t in trials if t.verdicts.get("EQUAL") or t.verdicts.get("WITHIN")}
    assert passed == BENIGN.keys()


def test_every_native_mutant_has_a_property_that_kills_it_alone_or_a_reason_why_none_does() -> (
    None
):
    assert ALONE.keys() == NATIVE.keys()
    known = set(PROPERTIES)
    assert {claim for claim in ALONE.values() if not claim.startswith("none: ")} <= known


@pytest.mark.slow
def test_that_property_kills_the_mutant(
    harness_pool: RankPool, request: pytest.FixtureRequest
) -> None:
    claimed = {key: claim for key, claim in ALONE.items() if claim in PROPERTIES}
    for key in sample(list(claimed), request.config):
        assert PROPERTIES[claimed[key]].kills(f"mutants.{key}", harness_pool), key
