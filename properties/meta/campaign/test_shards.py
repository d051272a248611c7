"""A campaign in parts has the result of the whole: drawn, judged, written, read and merged."""

import io
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from harness.campaign.check import check
from harness.campaign.examine import Examiner
from harness.campaign.merge import merge
from harness.campaign.request import Request
from harness.campaign.summary import Summary
from harness.campaign.tally import Tally
from harness.case import parse
from harness.cli import main
from harness.compare import Comparison, Verdict
from harness.engine.lot import MANY, SIZE, Lot, Part
from harness.failure.shrink import Shrunk
from harness.judge import Job, Session
from harness.rank_program.placement import Placement
from harness.ranks.pool import RankPool
from properties.helpers.judging import Answering, comparison_of

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
        limits=lambda _candidate: "",
        has_recipe=lambda _candidate: False,
    ),
)


@given(st.integers(1, 4 * MANY * SIZE), st.integers(1, 5), st.integers(1, 4))
def test_the_lots_of_all_shards_are_the_campaign_for_any_number_of_pools(
    count: int, of: int, pools: int
) -> None:
    of, sizes, seen = min(of, count), list[int](), list[tuple[int, int]]()
    for number in range(1, of + 1):
        part = Part(number, of)
        shard = [place for lot in part.lots(count, pools) for place in places(lot)]
        # The order does not depend on the pools, so neither does the first failure.
        assert shard == [place for lot in part.lots(count) for place in places(lot)]
        sizes.append(len(shard))
        seen += shard
    assert len({*seen}) == len(seen) == count
    assert max(sizes) - min(sizes) <= max(SIZE * of, count // MANY) if of > 1 else True


def places(lot: Lot) -> list[tuple[int, int]]:
    """Return the places of a lot's cases in the campaign."""
    assert 0 < len(lot) <= lot.size <= SIZE
    return [(lot.number, place) for place in lot.share(range(lot.size))]


@pytest.mark.slow
def test_merged_shards_have_the_result_of_the_whole_campaign(harness_pool: RankPool) -> None:
    console = Console(file=io.StringIO())
    whole = check(Examiner(request=REQUEST, session=Session(harness_pool)), console)
    parts = [
        check(Examiner(request=REQUEST, session=Session(harness_pool), part=Part(k, 3)), console)
        for k in (1, 2, 3)
    ]
    union = merge([(f"shard {k}", part) for k, part in enumerate(parts)])
    assert union.missing == ()
    for name, tally in union.tallies.items():
        # Everything is equal but how long the cases took.
        assert replace(tally, pace=whole.tallies[name].pace) == whole.tallies[name]
        assert sum(pace.cases for pace in tally.pace.values()) == 8
    assert union.situations == whole.situations
    assert (union.begun, union.cases, union.verdict) == (whole.begun, 8, whole.verdict)
    assert [lot.count for lot in union.begun.values()] == [8]
    for tally in union.tallies.values():
        assert set(tally.used) == {"fp64", "fp32"}
        assert sum(sum(h.counts) for h in tally.used.values()) == 8
        assert 0 < tally.used["fp64"].most < 0.5
        assert max(used.most for used in tally.used.values()) == tally.most <= 1
    for summary in (whole, *parts, union):
        assert Summary.from_record(json.loads(json.dumps(summary.record()))) == summary


def answering(verdict: Verdict) -> Session:
    """Return a session without ranks, in which every case has this verdict."""

    def answer(job: Job) -> Comparison:
        assert job.against == REQUEST.against
        return comparison_of(job, verdict)

    return Answering(NO_POOL, answer)


def test_a_ctrl_c_while_a_case_is_counted_waits_until_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = Tally.add

    def add_after_ctrl_c(tally: Tally, comparison: Comparison, *more: Any) -> None:
        if tally.judged == 2:
            os.kill(os.getpid(), signal.SIGINT)
        add(tally, comparison, *more)

    monkeypatch.setattr(Tally, "add", add_after_ctrl_c)
    # A process that was started in the background ignores the signal.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        before = signal.getsignal(signal.SIGINT)
        summary = check(
            Examiner(request=REQUEST, session=answering(Verdict.EQUAL)),
            Console(file=io.StringIO()),
        )
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert summary.ended == "interrupted"
    assert max(tally.judged for tally in summary.tallies.values()) == summary.cases == 3


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write the documents of three shards, each of which diverges in its first case."""
    for name, fake in (
        ("shrink_and_confirm", lambda failure, *_: Shrunk(failure, tried=0, finished=True)),
        ("keep_bundle", lambda *_, **__: "nowhere"),
    ):
        monkeypatch.setattr(f"harness.campaign.examine.{name}", fake)
    names = [str(tmp_path / f"{k}.json") for k in (1, 2, 3)]
    for k, name in enumerate(names, 1):
        session, part = answering(Verdict.DIVERGED), Part(k, 3)
        examiner = Examiner(request=REQUEST, session=session, part=part, diagnoses=False)
        summary = check(examiner, Console(file=io.StringIO()))
        Path(name).write_text(json.dumps(summary.record()))
    return names


def read(name: str) -> Any:
    return json.loads(Path(name).read_text())


def merged(capsys: pytest.CaptureFixture[str], *names: str, into: Path | None = None) -> Any:
    assert main(["merge", "--json", *names]) == 1
    text = capsys.readouterr().out
    if into:
        into.write_text(text)
    return json.loads(text)


def test_the_failures_of_all_shards_are_kept_and_the_smallest_is_explained(
    documents: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    failures = [read(name)["candidates"]["native-gather"]["failures"][0] for name in documents]
    kept = merged(capsys, *documents)["candidates"]["native-gather"]["failures"]
    assert sorted(kept, key=str) == sorted(failures, key=str)
    tokens = [parse(failure["case"]).tokens for failure in kept]
    assert tokens == sorted(tokens)
    assert main(["merge", *reversed(documents)]) == 1
    text = capsys.readouterr().out
    assert kept[0]["explanation"] in text
    assert f"also    DIVERGED  {kept[1]['replay']}" in text


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
