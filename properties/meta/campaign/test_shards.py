"""A campaign in parts is the campaign: drawn, judged, written, read and put together."""

import io
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.campaign.check import check
from harness.campaign.merge import merge
from harness.campaign.request import WHOLE, EmptyPart, Part, Request
from harness.campaign.summary import Summary
from harness.case import Case, parse
from harness.cli import main
from harness.compare import Comparison, Verdict
from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool
from properties.helpers.outside import DOUBLED

REQUEST = Request(
    candidates=("native-gather", "native-local"),
    sps=(2, 1),
    dps=(1,),
    dtypes=("fp64", "fp32"),
    losses=("token-mean",),
    count=8,
    seed=3,
)
NO_POOL = cast(
    "RankPool",
    SimpleNamespace(
        size=2,
        device="cpu",
        transport="gloo",
        placement=Placement(),
        place={},
        start=lambda: None,
    ),
)
Job = tuple[Case, str]


def examined(
    monkeypatch: pytest.MonkeyPatch, shard: Part, count: int, wrong: Iterable[Case] = ()
) -> list[Case]:
    """The cases that a shard hands to the ranks; everything is equal but what is wrong."""
    asked: list[Case] = []

    def judge(jobs: Iterator[Job], _: RankPool) -> Iterator[Comparison]:
        for case, candidate in jobs:
            asked.append(case)
            verdict = Verdict.DIVERGED if case in wrong else Verdict.EQUAL
            yield Comparison(case=case, candidate=candidate, verdict=verdict)

    monkeypatch.setattr("harness.campaign.check.evaluate_all", judge)
    request = Request(
        candidates=("native-gather",), sps=(1, 2), dps=(1,), dtypes=("fp64",),
        losses=("token-mean",), count=count, seed=5,
    )  # fmt: skip
    check(request, NO_POOL, Console(file=io.StringIO()), shard)
    return asked


@given(st.lists(st.integers(), min_size=1, unique=True), st.data())
def test_shards_are_disjoint_and_together_everything(
    batch: list[int], data: st.DataObject
) -> None:
    of = data.draw(st.integers(1, len(batch)))
    parts = [Part(number, of).share(batch) for number in range(1, of + 1)]
    assert sorted(itertools.chain(*parts)) == sorted(batch)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    with pytest.raises(EmptyPart, match="too few"):
        Part(1, len(batch) + 1).share(batch)


@pytest.mark.parametrize("of", [2, 10])
def test_every_case_of_a_campaign_is_in_one_shard_of_it(
    monkeypatch: pytest.MonkeyPatch, of: int
) -> None:
    whole = examined(monkeypatch, WHOLE, 10)
    assert len(set(whole)) == len(whole) == 10
    for number in range(1, of + 1):
        assert examined(monkeypatch, Part(number, of), 10) == whole[number - 1 :: of]


def test_the_shards_of_a_campaign_find_what_the_campaign_finds(harness_pool: RankPool) -> None:
    console = Console(file=io.StringIO())
    whole = check(REQUEST, harness_pool, console)
    parts = [check(REQUEST, harness_pool, console, Part(k, 3)) for k in (1, 2, 3)]
    union = merge([(f"shard {k}", part) for k, part in enumerate(parts)])
    assert union.missing == ()
    assert union.tallies == whole.tallies
    assert union.situations == whole.situations
    assert (union.drawn, union.cases, union.verdict) == (whole.drawn, 8, whole.verdict)
    for tally in union.tallies.values():
        assert set(tally.used) == {"fp64", "fp32"}
        assert sum(sum(h.counts) for h in tally.used.values()) == 8
        assert 0 < tally.used["fp64"].most < 0.5
        assert max(used.most for used in tally.used.values()) == tally.most <= 1
    for summary in (whole, *parts, union):
        assert Summary.from_record(json.loads(json.dumps(summary.record()))) == summary


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `check --json` prints of three shards, each of which diverges."""
    folder = tmp_path_factory.mktemp("shards")
    (folder / "broken.py").write_text(DOUBLED)
    request = replace(REQUEST, candidates=("broken.py:DOUBLED",), sps=(1,))
    # Each failure is confirmed on fresh ranks: one starts sooner than four.
    with pytest.MonkeyPatch.context() as patch, RankPool(1) as pool:
        patch.chdir(folder)  # bundles go to the current folder
        for k in (1, 2, 3):
            found = check(request, pool, Console(file=io.StringIO()), Part(k, 3))
            Path(f"{k}.json").write_text(json.dumps(found.record()))
    return [str(folder / f"{k}.json") for k in (1, 2, 3)]


def read(name: str) -> Any:
    return json.loads(Path(name).read_text())


def merged(capsys: pytest.CaptureFixture[str], *names: str, into: Path | None = None) -> Any:
    assert main(["merge", "--json", *names]) == 1
    said = capsys.readouterr().out
    if into:
        into.write_text(said)
    return json.loads(said)


def test_the_failures_of_all_shards_are_kept_and_the_smallest_is_explained(
    documents: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    every = [read(name)["candidates"]["broken.py:DOUBLED"]["failures"][0] for name in documents]
    kept = merged(capsys, *documents)["candidates"]["broken.py:DOUBLED"]["failures"]
    assert sorted(kept, key=str) == sorted(every, key=str)
    tokens = [parse(failure["case"]).tokens for failure in kept]
    assert tokens == sorted(tokens)
    assert main(["merge", *reversed(documents)]) == 1
    said = capsys.readouterr().out
    assert kept[0]["explanation"] in said
    assert f"also    DIVERGED  {kept[1]['replay']}" in said


def test_what_merge_prints_as_json_can_be_merged_again(
    documents: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = tmp_path / "half.json"
    shards = merged(capsys, *documents[:2], into=half)["shards"]
    assert shards == {"of": 3, "examined": [1, 2], "missing": [3]}
    at_once, by_halves = (
        merged(capsys, *names) for names in (documents, (str(half), documents[2]))
    )
    assert at_once["shards"] == {"of": 3, "examined": [1, 2, 3], "missing": []}
    assert at_once == by_halves
