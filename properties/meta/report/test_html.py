"""Pages of documents: what they show, what they refuse, and how they are written.

`test_browser.py` looks at them in a browser.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.against import ITSELF, NAMES
from harness.case import Row
from harness.cli import main
from harness.commands.options import Report, answer
from harness.compare import Look, fault_comparison
from harness.failure.bundle import write_bundle
from harness.golden.verify import GoldenResults
from harness.report import comparison_record
from harness.report.html import NotDrawn, Page, pages_of, save
from harness.trace import Fault, Kind
from properties.helpers.commands import run_to_end
from properties.helpers.comparisons import changed
from properties.helpers.drawn import CASE, HOSTILE, SIGNS, campaign, pictured
from properties.helpers.full import full_disk
from properties.helpers.fuzzing import fuzz, one_value_else
from properties.helpers.places import ROOT
from properties.meta.report.pages import cells_of, page_of


def test_a_page_shows_heads_gradients_cause_and_replay_command() -> None:
    page = page_of(pictured())
    assert "All 2 heads are wrong somewhere." in page
    assert re.search(r'"wrong"><th scope="row">head</th><td class="number">0\.5<', page)
    assert "Usually labels are rolled after the stream is cut, not before." in page
    assert f"python -m harness repro &#34;{CASE}&#34; --candidate mine.py:MINE" in page


def test_a_page_shows_the_case_before_and_after_shrinking() -> None:
    larger = replace(CASE, rows=(*CASE.rows, Row("11111")))
    page = page_of(pictured(larger=pictured(larger, SIGNS + "00080")))
    assert "Before: 12 tokens, 2 ranks" in page
    assert "After: 7 tokens, 2 ranks" in page
    assert str(larger) in page


def test_everything_from_a_record_is_escaped() -> None:
    fault = Fault(kind=Kind.RAISED, summary=HOSTILE, stacks={0: HOSTILE}, log=HOSTILE)
    for comparison in (
        changed(pictured(), candidate=HOSTILE, reason=HOSTILE, seen=(Look("crashed", HOSTILE),)),
        changed(fault_comparison(CASE, HOSTILE, fault), logs={0: HOSTILE}),
    ):
        page = page_of(comparison, test=HOSTILE, bundle=HOSTILE)
        assert page.count("<script") == 1
        assert "&lt;script&gt;alert(1)" in page
        assert "{{ 7*7 }}" in page
        assert 'onload="x"' not in page
        assert pages_of("x", comparison_record(comparison))[0].name.endswith(".html")


def test_a_page_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = page_of(pictured())
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?:", page.replace("'none'", ""))
    assert "default-src 'none'" in page
    assert save(tmp_path, [Page("a.html", page)]) == [tmp_path / "a.html"]


def test_a_campaign_page_lists_refused_and_unjudgeable_cases_separately() -> None:
    page = pages_of("x", campaign())[0].text
    assert "does not support 2 cases that were drawn" in page
    assert "<li>3 in bf16: rounding hides grad.head</li>" in page


def test_the_page_of_a_step_compared_with_itself_does_not_mention_plain_training() -> None:
    page = page_of(replace(pictured(), against="self"))
    assert f"It computes something else than {NAMES[ITSELF]}." in page
    assert "plain training" not in page


def test_a_folder_of_several_pages_has_an_index_and_nothing_unfinished(tmp_path: Path) -> None:
    save(tmp_path, pages_of("x", comparison_record(pictured())))
    assert not (tmp_path / "index.html").exists()
    save(tmp_path, pages_of("x", comparison_record(replace(pictured(), candidate="<b>"))))
    index = (tmp_path / "index.html").read_text()
    assert "DIVERGED &lt;b&gt;" in index
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".html"] * 3


def test_the_page_of_a_bundle_is_made_without_torch(tmp_path: Path) -> None:
    bundle = write_bundle(pictured(), tmp_path / "kept")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from harness.cli import main\n"
        f"sys.exit(main(['report', {str(bundle)!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    run = run_to_end(sys.executable, "-c", code)
    assert run.returncode == 0, run.stderr
    (page,) = (tmp_path / "out").iterdir()
    assert run.stdout.strip() == str(page)
    assert cells_of(page.read_text()) == list(SIGNS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "is no document of the harness"),
        ('{"a": 1}', "is no document that pages are made of"),
    ],
)
def test_a_file_that_is_no_document_is_refused_in_one_sentence(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["report", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"harness: document={file}: {reason}\n"
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_is_no_bundle_is_refused_with_the_name_of_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    lacks = "failure.json cannot be read: No such file or directory"
    assert capsys.readouterr().err == f"harness: document={tmp_path}: {lacks}\n"


@pytest.mark.parametrize("command", [["check"], ["repro", str(CASE)], ["mutants"]])
def test_a_folder_that_cannot_be_written_is_refused_before_any_rank_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([*command, "--report", str(tmp_path / "file" / "in")]) == 2
    assert "--report=" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "final"), [(0, 3), (1, 1), (3, 3), (130, 130)])
def test_a_page_that_cannot_be_written_turns_only_a_pass_into_a_fault(
    status: int, final: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Report(report=tmp_path)
    document = campaign()
    with full_disk():
        assert answer(options, document, status) == final
    message = f"harness: --report={tmp_path}: cannot be written: File too large"
    if status == 0:
        message += "; everything passed, and the exit status is 3 for want of its page"
    assert capsys.readouterr().err == f"{message}\n"
    assert not list(tmp_path.iterdir())
    assert answer(options, document, status) == status
    assert list(tmp_path.iterdir())


def test_pages_say_that_a_step_was_compared_with_itself() -> None:
    verdict = '<p class="means">It computes something else than {}.</p>'
    assert verdict.format("plain training") in page_of(pictured())
    assert verdict.format(NAMES[ITSELF]) in page_of(pictured(against="self"))
    caveat = f"compared with {NAMES[ITSELF]}: what is wrong there as well does not show here"
    document = campaign()
    assert caveat not in pages_of("x", document)[0].text
    document["campaign"]["against"] = "self"
    assert f"It is {caveat}." in pages_of("x", document)[0].text
    verified = GoldenResults(goldens=1, against=Counter(self=2)).record()
    assert f"2 runs are {caveat}." in pages_of("x", verified)[0].text


def documents() -> dict[str, Callable[[], Any]]:
    """Return a function for a document of every kind."""
    conformance = json.loads((ROOT / "docs" / "conformance.json").read_text())
    first = dict(list(conformance["candidates"].items())[:2])
    releases = dict(list(conformance["releases"].items())[:1])
    return {
        "failure": lambda: comparison_record(pictured(larger=pictured())),
        "campaign": campaign,
        "conformance": lambda: {"candidates": first, "releases": releases},
        "goldens": lambda: {
            "goldens": 1,
            "verdict": "DIVERGED",
            "verdicts": {"DIVERGED": 1},
            "listed": {},
            "refused": {"why": 1},
            "elements": 3,
            "seconds": 0.5,
            "failures": {"one": comparison_record(pictured())},
        },
        "recorded": lambda: {
            "goldens": [{"name": "one", "change": "none", "why": "", "verdict": "WITHIN"}],
            "failures": {},
            "placement": {"device": "cpu"},
        },
    }


def test_releases_are_drawn_from_the_oldest_to_the_newest() -> None:
    document = json.loads((ROOT / "docs" / "conformance.json").read_text())
    pages = {page.name: page.text for page in pages_of("x", document)}
    (drawn,) = (text for text in pages.values() if "Releases: verl_sft.packed" in text)
    assert re.findall(r'<th scope="col">([\d.]+)</th>', drawn) == ["0.4.1", "0.5.0", "0.6.1"]
    (bug,) = re.findall(r'scope="row">predicted-mask</th>(.*)</tr>', drawn)
    assert re.findall(r'class="(\w+)"', bug) == ["failed", "failed", "passed"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", documents())
def test_a_mutated_document_is_drawn_or_refused(kind: str) -> None:
    text, random = json.dumps(documents()[kind]()), Random(7)

    def draw(changed: str) -> None:
        for page in pages_of("x", json.loads(changed)):
            assert page.text.count("<script") == 1

    seen = fuzz(draw, (one_value_else(text, random) for _ in range(150)), NotDrawn, 150)
    assert seen.total() == 150
