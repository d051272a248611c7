"""The summary of a run: its table, its failures, and the annotations on GitHub."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import summary
import torch
from length import document

from harness.campaign.request import Request
from harness.campaign.summary import Summary
from harness.campaign.tally import Tally
from harness.detection import Score
from harness.doctor import examine
from harness.golden.verify import GoldenResults

pytest_plugins = ["pytester"]

Summarize = Callable[..., str]


@pytest.fixture
def summarize(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Summarize:
    """Run `ci/summary.py` on a folder, and return what it prints."""

    def run(folder: Path, on_github: str = "") -> str:
        monkeypatch.setenv("GITHUB_ACTIONS", on_github)
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
        monkeypatch.setattr(sys, "argv", ["ci/summary.py", str(folder)])
        capsys.readouterr()
        assert summary.main() == 0
        return capsys.readouterr().out

    return run


def campaign(**verdicts: int) -> dict[str, Any]:
    """Return a document of `check` in which one candidate failed."""
    failure = {"verdict": "DIVERGED", "case": "case/1 rows=2:11", "explanation": "DIVERGED\n100%"}
    tally = Tally(verdicts=Counter(verdicts), failures=[failure])
    request = Request(
        candidates=("mine",), sps=(1,), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
        count=20, seed=0,
    )  # fmt: skip
    return Summary(
        request=request, ranks=1, versions={}, size=20, of=1, shards=(1,),
        tallies={"mine": tally}, situations=Counter(), cases=20, seconds=8.0,
    ).record()  # fmt: skip


def test_a_campaign_has_one_line_and_its_failure_is_shown_and_annotated(
    tmp_path: Path, summarize: Summarize
) -> None:
    (tmp_path / "check.json").write_text(json.dumps(campaign(WITHIN=18, EQUAL=1, DIVERGED=1)))
    output = summarize(tmp_path, "true")
    assert (
        "| check |  |  | 20 cases, 2.5 cases/s: mine 1 DIVERGED, 1 EQUAL, 18 WITHIN, used 0 |"
        in output
    )
    assert "**check: DIVERGED**\n\n~~~\nDIVERGED\n100%\n~~~" in output
    assert "::error title=check%3A DIVERGED::DIVERGED%0A100%25\n" in output


def test_a_page_is_never_too_long_for_github_and_says_how_many_failures_it_leaves_out(
    tmp_path: Path, summarize: Summarize
) -> None:
    many = campaign(DIVERGED=20)
    (failure,) = many["candidates"]["mine"]["failures"]
    long = failure | {"explanation": "\u2264" * 50_000}
    many["candidates"]["mine"]["failures"] = [long] * 20
    (tmp_path / "check.json").write_text(json.dumps(many))
    output = summarize(tmp_path, "true")
    page = (tmp_path / "summary.md").read_bytes()
    assert 700_000 < len(page) < 1 << 20
    assert b"\n15 more failures have no room here; their documents have all.\n" in page
    assert output.count("::error ") == 10


SCORE = Score().record()["score"] | {"mutants": 14, "killed": 13, "named_right": 12}
VERIFIED = GoldenResults(goldens=2, verdicts=Counter(WITHIN=9), seconds=3.0).record()


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"score": SCORE}, "13 of 14 mutants killed, 12 named right"),
        ({"score": SCORE | {"benign": 2}}, "12 named right, 0 of 2 benign variants flagged"),
        (VERIFIED, "2 goldens, 9 runs, 3.0 runs/s: 9 WITHIN"),
        (
            {"goldens": [{"change": "none"}, {"change": "drift"}]},
            "2 goldens, changes: 1 drift, 1 none",
        ),
        (
            {
                "attention": [
                    {
                        "kernel": "by itself",
                        "dtype": "bf16",
                        "took": "MATH",
                        "error": "",
                        "off": 0.5,
                    },
                    {"kernel": "FLASH_ATTENTION", "dtype": "bf16", "error": "no", "off": None},
                ],
                "broken": "",
            },
            "by itself 1 of 1; FLASH_ATTENTION 0 of 1; in bf16 torch takes 1 MATH, off by 0.5",
        ),
        (
            {"collectives": {"reduce": {"bool": ""}, "send": {"bool": "hangs", "int64": ""}}},
            "work: reduce; send not: hangs",
        ),
        (
            document(
                [
                    {
                        "tokens": 4096,
                        "verdict": "WITHIN",
                        "seconds": 9.1,
                        "largest rank": 1e4,
                        "controller": 2e4,
                    }
                ]
            ),
            "4,096 tokens WITHIN, 9 s, 10,000 MB a rank, 20,000 MB in the controller",
        ),
        (
            {"sp 2": {"harness, cases/s": 9.0, "bare loop on the same ranks, cases/s": 12.0}},
            "sp 2: 9.0 cases/s, bare loop 12.0",
        ),
        (
            {
                "score": SCORE,
                "placement": {"device": "cuda:0", "transport": "gloo"},
                "versions": {"torch": "2.11.0+cu130"},
            },
            "12 named right; device cuda:0, transport gloo, torch 2.11.0+cu130",
        ),
        (
            {"recorded": ["a"], "left_out": {"b": "is big"}},
            "1 goldens recorded, left out: b is big",
        ),
    ],
)
def test_each_kind_of_document_is_summarized_in_one_line(
    document: dict[str, Any], line: str, tmp_path: Path, summarize: Summarize
) -> None:
    (tmp_path / "step.json").write_text(json.dumps(document))
    assert f"{line} |\n" in summarize(tmp_path)


def test_the_line_of_doctor_says_what_the_machine_has_and_lacks(
    tmp_path: Path, summarize: Summarize
) -> None:
    (tmp_path / "doctor.json").write_text(json.dumps(examine()))
    output = summarize(tmp_path)
    assert "| devices cpu" in output
    assert f"; torch {torch.__version__} |" in output
    assert "xpu not: torch finds no XPU device" in output


def test_a_test_that_failed_is_annotated_where_it_begins(
    pytester: pytest.Pytester, summarize: Summarize
) -> None:
    pytester.makepyfile(
        test_mine="def test_one():\n    pass\n\ndef test_two():\n    assert not 'so', 'oh'\n"
    )
    pytester.runpytest_inprocess("--junitxml=tests.xml", "-o", "junit_family=xunit1")
    output = summarize(pytester.path, "true")
    assert "| tests |  |  | 2 tests: 1 failed, 1 passed |" in output
    assert "::error file=test_mine.py,line=4,title=test_two::AssertionError: oh" in output


def test_the_whole_block_of_a_failed_proof_is_shown(tmp_path: Path, summarize: Summarize) -> None:
    block = "DIVERGED shard-swapped: two are\n  replay  python -m harness repro"
    failure = f'<failure message="{block.splitlines()[0]}">{block}</failure>'
    (tmp_path / "tests.xml").write_text(
        f'<suite><testcase name="one">{failure}</testcase></suite>'
    )
    assert f"~~~\n{block}\n~~~" in summarize(tmp_path)


def test_steps_that_did_not_run_are_shown_and_are_no_failures(
    tmp_path: Path, summarize: Summarize
) -> None:
    lines = ["nccl\tleft out\t\tnot on cpu", "golden\trunning\t\t30 s", "rate\twaiting\t\t"]
    (tmp_path / "steps.tsv").write_text("\n".join(lines))
    output = summarize(tmp_path, "true")
    assert "| nccl | left out |  | not on cpu |\n| golden | running |  | 30 s |\n" in output
    assert "| rate | waiting |  |  |" in output
    assert "::error" not in output


def test_a_step_that_was_cut_off_is_marked_and_its_partial_document_is_ignored(
    tmp_path: Path, summarize: Summarize
) -> None:
    (tmp_path / "steps.tsv").write_text("check\t124\t600\n")
    (tmp_path / "check.json").write_text('{"candidates": {')
    (tmp_path / "check.txt").write_text("120 of 300\nharness: interrupted\n\n")
    output = summarize(tmp_path)
    assert "| check | **124** | 600 | cut off; harness: interrupted |" in output
