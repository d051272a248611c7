"""A campaign in parts is the campaign: drawn, judged, written, read and put together."""

import io
import itertools
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.against import Against
from harness.campaign.check import check
from harness.campaign.merge import merge
from harness.campaign.request import EmptyPart, Part, Request
from harness.campaign.summary import Summary
from harness.campaign.tally import Tally
from harness.case import Case, parse
from harness.cli import main
from harness.compare import Comparison, Verdict
from harness.failure.shrink import Shrunk
from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool

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


def test_the_shards_of_a_campaign_find_what_the_campaign_finds(harness_pool: RankPool) -> None:
    console = Console(file=io.StringIO())
    whole = check(REQUEST, harness_pool, console)
    parts = [check(REQUEST, harness_pool, console, Part(k, 3)) for k in (1, 2, 3)]
    union = merge([(f"shard {k}", part) for k, part in enumerate(parts)])
    assert union.missing == ()
    for name, tally in union.tallies.items():
        # How long it took is another matter.
        assert replace(tally, pace=whole.tallies[name].pace) == whole.tallies[name]
        assert sum(pace.cases for pace in tally.pace.values()) == 8
    assert union.situations == whole.situations
    assert (union.drawn, union.cases, union.verdict) == (whole.drawn, 8, whole.verdict)
    for tally in union.tallies.values():
        assert set(tally.used) == {"fp64", "fp32"}
        assert sum(sum(h.counts) for h in tally.used.values()) == 8
        assert 0 < tally.used["fp64"].most < 0.5
        assert max(used.most for used in tally.used.values()) == tally.most <= 1
    for summary in (whole, *parts, union):
        assert Summary.from_record(json.loads(json.dumps(summary.record()))) == summary


def test_a_case_is_counted_whole_or_not_at_all_whenever_somebody_stops_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def passes(
        jobs: Iterator[tuple[Case, str]], _: RankPool, *, against: Against
    ) -> Iterator[Comparison]:
        assert against == REQUEST.against
        for case, candidate in jobs:
            yield Comparison(case=case, candidate=candidate, verdict=Verdict.EQUAL)

    add = Tally.add

    def stopped(tally: Tally, comparison: Comparison, *more: Any) -> None:
        if tally.judged == 2:
            os.kill(os.getpid(), signal.SIGINT)
        add(tally, comparison, *more)

    monkeypatch.setattr("harness.campaign.check.evaluate_all", passes)
    monkeypatch.setattr(Tally, "add", stopped)
    # Whoever was started in the background ignores it.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        before = signal.getsignal(signal.SIGINT)
        found = check(REQUEST, NO_POOL, Console(file=io.StringIO()))
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert found.ended == "interrupted"
    assert max(tally.judged for tally in found.tallies.values()) == found.cases == 3


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `check --json` prints of three shards, each of which diverges in its first case."""

    def diverges(
        jobs: Iterator[tuple[Case, str]], _: RankPool, *, against: Against
    ) -> Iterator[Comparison]:
        assert against == REQUEST.against
        for case, candidate in jobs:
            yield Comparison(case=case, candidate=candidate, verdict=Verdict.DIVERGED)

    for name, fake in (
        ("evaluate_all", diverges),
        ("smallest", lambda failure, *_: Shrunk(failure, tried=0, finished=True)),
        ("keep", lambda *_, **__: "nowhere"),
    ):
        monkeypatch.setattr(f"harness.campaign.check.{name}", fake)
    names = [str(tmp_path / f"{k}.json") for k in (1, 2, 3)]
    for k, name in enumerate(names, 1):
        found = check(REQUEST, NO_POOL, Console(file=io.StringIO()), Part(k, 3), diagnoses=False)
        Path(name).write_text(json.dumps(found.record()))
    return names


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
    every = [read(name)["candidates"]["native-gather"]["failures"][0] for name in documents]
    kept = merged(capsys, *documents)["candidates"]["native-gather"]["failures"]
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
