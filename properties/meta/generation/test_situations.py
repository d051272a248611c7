"""Every situation is recognised, and generated campaigns are in it often enough."""

from collections import Counter

import pytest

from harness.campaign.case_source import draw
from harness.case import Case, parse
from harness.commands.campaign_request import read_request
from harness.generation import cases, draw_list
from harness.generation.situations import SITUATIONS, situations_of
from properties.helpers.commands import options_of

# How many cases a campaign here has, and how many of them at least have to be in each situation.
CAMPAIGN = 500
LEAST = 20

# For each situation, a case that is in it and one that just misses it.
EXAMPLES = {
    "boundary inside a row, supervised on both sides": ("rows=4:1101", "rows=4:1100"),
    "supervised label on the next rank": ("rows=4:1111", "rows=4:1101"),
    "boundary just before a row's last token": ("rows=4:1111,2:11", "rows=5:11111,1:1"),
    "boundary at a row's end": ("rows=2:11,2:11", "rows=3:111,1:1"),
    "boundary at a row's start": ("rows=2:11,2:11", "rows=1:1"),
    "boundary in a row's unsupervised prefix": ("rows=4:0001", "rows=4:0011"),
    "row over three or more shards": ("rows=3:111 heads=3 sp=3", "rows=2:11,1:1 heads=3 sp=3"),
    "row exactly one shard long": ("rows=2:11,1:1", "rows=3:111,1:1"),
    "one-token row": ("rows=2:11,1:1", "rows=2:11,2:11"),
    "single row in a stream": ("rows=3:111,1:1 micro=2", "rows=2:11,1:1"),
    "T divisible by sp": ("rows=3:111,1:1", "rows=4:1111 sp=1"),
    "pad of one": ("rows=3:111", "rows=4:1111"),
    "pad of two or more": ("rows=6:111111 sp=4", "rows=7:1111111 sp=4"),
    "pad of sp - 1, sp > 2": ("rows=5:11111 sp=4", "rows=5:11111"),
    "T < sp": ("rows=3:111 sp=4", "rows=4:1111 sp=4"),
    "rank that holds only padding": ("rows=6:111111 sp=4", "rows=7:1111111 sp=4"),
    "rank with no supervised token": ("rows=4:1100", "rows=4:1101"),
    "exactly one supervised token": ("rows=4:1001,1:1", "rows=4:1011,1:1"),
    "no supervised token at all": ("rows=3:100,1:1", "rows=3:100,2:11"),
    "mask with holes": ("rows=4:0101", "rows=4:0110"),
    "first token of a row masked in": ("rows=3:011,3:100", "rows=3:011,3:010"),
    "last row of full width": ("rows=2:11,3:111", "rows=2:11,3:111 micro=2"),
    "left-padded row": ("rows=3:111,2:11:left", "rows=3:111,2:11:left micro=2"),
    "real token equal to the pad id": ("rows=2:11 ids=[1,3] pad=3", "rows=2:11 ids=[1,0] pad=3"),
    "two equal rows in a stream": (
        "rows=2:11,2:11:left ids=[1,2],[1,2]",
        "rows=2:11,2:11 ids=[1,2],[1,2] dp=2",
    ),
    "kv heads < sp": ("rows=3:111 heads=4/2 sp=4", "rows=3:111 heads=4/4 sp=4"),
    "kv heads = 1, several ranks": ("rows=3:111 heads=4/1", "rows=3:111 heads=4/1 sp=1"),
    "several kv heads on a rank, shared by queries": (
        "rows=3:111 heads=8/4",
        "rows=3:111 heads=8/8",
    ),
    "one head per rank": ("rows=3:111 heads=4 sp=4", "rows=3:111 heads=8 sp=4"),
    "local length equal to the number of heads": (
        "rows=4:1111,3:111 heads=4",
        "rows=4:1111,2:11 heads=4",
    ),
    "dp and sp above 1, and different": (
        "rows=2:11,2:11 sp=4 heads=4 dp=2",
        "rows=2:11,2:11 dp=2",
    ),
    "very unequal counts over dp": ("rows=6:111111,2:11 dp=2", "rows=5:11111,2:11 dp=2"),
    "micro-batches with unequal counts": (
        "rows=3:111,2:11 micro=2",
        "rows=3:111,2:11,3:111,2:11 micro=2 dp=2",
    ),
    "one micro-batch empty of targets, another not": (
        "rows=2:11,2:10 micro=2",
        "rows=2:11,2:10,2:11,2:01 micro=2",
    ),
    "window shorter than a row that is cut": ("rows=4:1111 window=3", "rows=4:1111 window=4"),
    "several layers, cut row": ("rows=4:1111 layers=2", "rows=2:11,2:11 layers=2"),
    "several steps": ("rows=2:11 steps=2", "rows=2:11"),
}


def test_every_situation_has_two_examples_and_a_docstring() -> None:
    assert list(EXAMPLES) == list(SITUATIONS)
    assert all(predicate.__doc__ for predicate in SITUATIONS.values())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_situation_is_recognised_only_on_a_case_that_is_in_it(name: str) -> None:
    inside, outside = (parse(f"case/1 {fields}") for fields in EXAMPLES[name])
    assert name in situations_of(inside)
    assert name not in situations_of(outside)


def rarely_met(batch: list[Case]) -> dict[str, int]:
    """Return the situations that a campaign met too rarely to have found anything."""
    met = Counter(name for case in batch for name in situations_of(case))
    return {name: met[name] for name in SITUATIONS if met[name] < LEAST}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_campaign_of_500_cases_is_in_every_situation(seed: int) -> None:
    request, ranks = read_request(
        options_of("check", "--cases", str(CAMPAIGN), "--seed", str(seed))
    )
    batch = draw(request, ranks)
    assert len(batch) == CAMPAIGN
    assert rarely_met(batch) == {}


@pytest.mark.slow
def test_situations_that_a_narrow_campaign_rarely_meets_are_listed() -> None:
    easy = draw_list(cases(sps=(2,), dps=(1,), max_rows=1, max_steps=1), CAMPAIGN, 0)
    missed = rarely_met(easy)
    assert {"pad of two or more", "several steps", "dp and sp above 1, and different"} < set(
        missed
    )
    assert "pad of one" not in missed
