"""Pages say what the record says, whatever stands in it; a browser looks at them elsewhere."""

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
import torch

from harness.against import ITSELF, NAMES
from harness.case import Row, parse
from harness.cli import main
from harness.commands.options import Report, answer
from harness.compare import Comparison, Look, compare, faulted
from harness.compare.scale import Scale
from harness.failure.bundle import write_bundle
from harness.golden.verify import Verified
from harness.reference import reference
from harness.report import comparison_record
from harness.report.html import NotDrawn, Page, pages_of, save
from harness.trace import Fault, Kind, Misfit, MisfitKind
from properties.helpers.commands import ran
from properties.helpers.drawn import CASE, HOSTILE, SIGNS, campaign, pictured
from properties.helpers.full import full_disk
from properties.helpers.fuzzing import fuzz, one_value_else
from properties.helpers.places import ROOT
from properties.meta.diagnosis.test_anomalies import shown


def page_of(comparison: Comparison, **more: Any) -> str:
    return pages_of("x", {**comparison_record(comparison), **more})[0].text


def cells_of(page: str) -> list[str]:
    """The signs of the first map, in the order of its cells."""
    first, _, _ = page.partition('<svg class="tokens')[2].partition("</svg>")
    return re.findall(r'role="gridcell"[^>]*class="cell s(.)[^>]*data-token', first)


def test_a_map_has_a_cell_for_each_token_and_padding_beside_them() -> None:
    page = page_of(pictured())
    assert cells_of(page) == list(SIGNS)
    assert page.count("padding that rank 1 computes") == 2 * 4
    assert "row 0 position 4, token 4, id " in page
    assert "label 5, expected 4; error: 10^14 budgets or more" in page
    # The loss counts what predicts a target: not what stands before one that is none, nor ends.
    masked = re.findall(r'class="cell s. masked" data-token="(\d)"', page)
    assert sorted(set(masked)) == ["1", "4", "6"]


def test_a_token_that_no_rank_or_two_reported_stands_out() -> None:
    lost = Misfit(MisfitKind.LOST, "nll", (4,))
    twice = Misfit(MisfitKind.TWICE, "nll", (1,), (0, 1))
    for signs in (SIGNS, "0000000"):
        page = page_of(pictured(signs=signs, misfits=(lost, twice)))
        assert "a dashed edge were reported by no rank. Tokens with a thick edge" in page
        assert set(re.findall(r'stray lost" data-token="(\d)"', page)) == {"4"}
        assert set(re.findall(r'stray twice" data-token="(\d)"', page)) == {"1"}
        # Whatever it holds, it is not right.
        assert cells_of(page)[1] == "-"
        assert "nll: token lost" in page


def test_a_cell_holds_what_came_and_below_it_what_was_expected() -> None:
    labels, queries = page_of(pictured()).split('<details class="map"')[1:]
    assert "In a cell stands what came" in labels
    assert re.findall(r'<text x="[\d.]+" y="[\d.]+">(\d+)</text>', labels) == list("0123556")
    assert re.findall(r'class="want"[^>]*>(\d+)<', labels) == ["4"]
    assert "In a cell stands the id" in queries


@pytest.mark.parametrize(
    ("signs", "said"),
    [
        ("00-0800", ""),
        ("0080000", "It is the last before another rank goes on"),
        ("0008000", "It is the first after another rank"),
        ("0800080", ""),
        ("0080800", "All 2 are held by rank 0, and stand in row 0"),
        (
            "0000088",
            "All 2 stand in row 1, the only one padded on the left and behind another row",
        ),
        ("8888888", "Every token is wrong"),
    ],
)
def test_what_wrong_tokens_have_in_common_is_said(signs: str, said: str) -> None:
    failure = pictured(signs=signs)
    assert failure.picture is not None
    owners = ((0, 0), (3, 1), (4, 0), (6, 1)) if "held" in said else ((0, 0), (3, 1), (6, 0))
    drawn = replace(failure, picture=replace(failure.picture, owners=owners))
    assert re.findall(r"<strong>(\w+ \w+ \w+[^<]*)\.</strong>", page_of(drawn)) == [said] * bool(
        said
    )


def test_what_lies_beyond_the_window_is_said() -> None:
    failure = replace(pictured(signs="0088800"), case=replace(CASE, window=2))
    assert "<strong>All 3 have more before them than the window of 2.</strong>" in page_of(failure)


@pytest.mark.parametrize(
    ("signs", "said"),
    [
        ("0808000", "All 2 are the last before another rank goes on, of 3 such tokens"),
        ("0080800", "All 2 are the first after another rank, of 3 such tokens"),
        ("0808080", "All 3 are the last before another rank goes on, and none of these is right"),
    ],
)
def test_wrong_tokens_at_shard_edges_are_said_to_stand_there(signs: str, said: str) -> None:
    failure = pictured(signs=signs)
    assert failure.picture is not None
    owners = ((0, 0), (2, 1), (4, 0), (6, 1))
    drawn = replace(failure, picture=replace(failure.picture, owners=owners))
    assert re.findall(r"<strong>(All [^<]*)\.</strong>", page_of(drawn)) == [said] * bool(said)


def test_the_page_tells_which_tokens_each_rank_holds() -> None:
    page = page_of(pictured())
    assert (
        '<th scope="row">rank 0</th><td class="number">3</td><td>row 0 position 0 to 2</td>'
        in page
    )
    assert "<td>row 0 position 3 to 4, row 1 position 0 to 1</td>" in page


def test_a_factor_and_shares_of_gradients_are_told() -> None:
    failure = pictured(scale=Scale(0.5, "1/sp"))
    assert "Every gradient is 0.5 times the expected one, which is 1/sp." in page_of(failure)
    assert failure.picture is not None
    shared = replace(failure.picture, shares={"head": {0: 1.0, 1: 0.0}, "norm": {0: 1.0}})
    page = page_of(replace(failure, picture=shared))
    columns = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[-2:] for row in page.split("<tr")]
    assert ["once", "missing"] in columns
    assert ["once", "adds nothing"] in columns
    assert "share</th>" not in page_of(failure)


def test_a_gradient_of_the_other_sign_is_drawn_on_the_other_side() -> None:
    failure = pictured()
    assert failure.picture is not None
    turned = replace(failure.picture, ratios={"grad.head": -0.5})
    assert '<rect class="bar off" x="18.0" y="3" width="17.0"' in page_of(
        replace(failure, picture=turned)
    )


def test_a_gradient_that_is_zero_is_no_times_the_expected_one() -> None:
    # Who sees itself alone weighs nothing: queries and keys learn nothing.
    case = parse("case/1 rows=3:111 heads=2 layers=1 vocab=8 sp=2 window=1 dtype=fp64")
    oracle = reference(case, torch.float64, traced=True)
    zeros = {"layers.0.q", "layers.0.k"}
    for changed, told in (("head", "zero, as it should be"), ("layers.0.q", "it should be zero")):
        assembly = shown(case, {f"grad.{changed}": lambda gradient: gradient + 1.0})
        failure = compare(case, "tampered", oracle, [oracle], assembly)
        assert failure.picture is not None
        none = {key for key, ratio in failure.picture.ratios.items() if ratio is None}
        assert none == {f"grad.{name}" for name in zeros}
        row = f'<th scope="row">layers.0.q</th><td class="number">{told}<'
        assert row in page_of(failure)


def test_gradients_heads_cause_and_command_are_on_the_page() -> None:
    page = page_of(pictured())
    assert "All 2 heads are wrong somewhere." in page
    assert re.search(r'"wrong"><th scope="row">head</th><td class="number">0\.5<', page)
    assert "Usually labels are rolled after the stream is cut, not before." in page
    assert f"python -m harness repro &#34;{CASE}&#34; --candidate mine.py:MINE" in page


def test_a_hang_shows_where_ranks_part() -> None:
    entered = "all_to_all #3 on sp, ranks 0,1, shape [4]"
    fault = Fault(
        kind=Kind.HUNG,
        summary="rank 1 gave no answer",
        stacks={0: "in exchange", 1: "in loss"},
        collectives={
            0: (entered, "all_gather #4 on sp, ranks 0,1, shape [2], not done"),
            1: (entered, "all_reduce #4 on sp, ranks 0,1, shape [2], not done"),
        },
    )
    page = page_of(faulted(CASE, "mine.py:MINE", fault))
    assert page.count(": here ranks part") == 1
    assert "#4 on sp, ranks 0,1: here ranks part" in page
    assert page.count('class="done"') == page.count('class="waits"') == 2
    assert "in exchange" in page
    assert cells_of(page) == ["-"] * CASE.tokens


def entering(**collectives: tuple[str, ...]) -> str:
    logs = {int(rank.removeprefix("rank")): entered for rank, entered in collectives.items()}
    fault = Fault(kind=Kind.HUNG, summary="no answer", collectives=logs)
    return page_of(faulted(CASE, "mine.py:MINE", fault))


def test_ranks_part_where_one_never_came_though_another_is_done() -> None:
    first, second = (f"all_to_all #{n} on sp, ranks 0,1, shape [4]" for n in (3, 4))
    page = entering(rank0=(first, second, second.replace("#4", "#5")), rank1=(first,))
    assert re.findall(r"(#\d) on sp, ranks 0,1: here ranks part", page) == ["#4"]


def test_what_a_rank_no_longer_remembers_is_not_where_ranks_part() -> None:
    early, late = (f"all_to_all #{n} on sp, ranks 0,1, shape [{n}]" for n in (3, 4))
    page = entering(rank0=(early, late), rank1=(late.replace("[4]", "[7]"),))
    assert ": here ranks part" not in page
    page = entering(rank0=("send #1 on sp, ranks 0,1, shape [2]",), rank1=())
    assert ": here ranks part" not in page


def test_before_and_after_shrinking_stand_side_by_side() -> None:
    larger = replace(CASE, rows=(*CASE.rows, Row("11111")))
    page = page_of(pictured(larger=pictured(larger, SIGNS + "00080")))
    assert "Before: 12 tokens, 2 ranks" in page
    assert "After: 7 tokens, 2 ranks" in page
    assert str(larger) in page


def test_nothing_that_was_sent_to_us_is_more_than_text() -> None:
    fault = Fault(kind=Kind.RAISED, summary=HOSTILE, stacks={0: HOSTILE}, log=HOSTILE)
    for comparison in (
        replace(pictured(), candidate=HOSTILE, reason=HOSTILE, seen=(Look("crashed", HOSTILE),)),
        replace(faulted(CASE, HOSTILE, fault), logs={0: HOSTILE}),
    ):
        page = page_of(comparison, test=HOSTILE, bundle=HOSTILE)
        assert page.count("<script") == 1
        assert "&lt;script&gt;alert(1)" in page
        assert "{{ 7*7 }}" in page
        assert 'onload="x"' not in page
        assert pages_of("x", comparison_record(comparison))[0].name.endswith(".html")


def test_no_page_asks_anybody_for_anything(tmp_path: Path) -> None:
    page = page_of(pictured())
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?:", page.replace("'none'", ""))
    assert "default-src 'none'" in page
    assert save(tmp_path, [Page("a.html", page)]) == [tmp_path / "a.html"]


def test_sixteen_thousand_tokens_stay_under_two_megabytes() -> None:
    case = replace(CASE, rows=tuple(Row("1" * 4096) for _ in range(4)))
    page = page_of(pictured(case, "0" * 16383 + "8"))
    assert len(cells_of(page)) == 16384
    assert len(page.encode()) < 2_000_000


def test_what_is_too_large_to_be_drawn_is_said() -> None:
    case = replace(CASE, rows=(Row("1" * 20_000),))
    page = page_of(pictured(case, "0" * 20_000))
    assert "The case has 20000 tokens, too many to draw." in page


def test_what_was_not_judged_is_told_apart_from_what_a_candidate_refused() -> None:
    page = pages_of("x", campaign())[0].text
    assert "does not support 2 cases that were drawn" in page
    assert "<li>3 in bf16: rounding hides grad.head</li>" in page


def test_a_page_of_a_step_that_is_compared_with_itself_does_not_speak_of_plain_training() -> None:
    page = page_of(replace(pictured(), against="self"))
    assert f"It computes something else than {NAMES[ITSELF]}." in page
    assert "plain training" not in page


def test_several_pages_have_an_index_and_each_is_there_whole_or_not(tmp_path: Path) -> None:
    save(tmp_path, pages_of("x", comparison_record(pictured())))
    assert not (tmp_path / "index.html").exists()
    save(tmp_path, pages_of("x", comparison_record(replace(pictured(), candidate="<b>"))))
    index = (tmp_path / "index.html").read_text()
    assert "DIVERGED &lt;b&gt;" in index
    assert sorted(each.suffix for each in tmp_path.iterdir()) == [".html"] * 3


def test_a_page_is_made_of_a_bundle_where_there_is_no_torch(tmp_path: Path) -> None:
    bundle = write_bundle(pictured(), tmp_path / "kept")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from harness.cli import main\n"
        f"sys.exit(main(['report', {str(bundle)!r}, '--out', {str(tmp_path / 'out')!r}]))"
    )
    told = ran(sys.executable, "-c", code)
    assert told.returncode == 0, told.stderr
    (page,) = (tmp_path / "out").iterdir()
    assert told.stdout.strip() == str(page)
    assert cells_of(page.read_text()) == list(SIGNS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "is no document of the harness"),
        ('{"a": 1}', "is no document that pages are made of"),
    ],
)
def test_what_is_no_document_is_refused_in_a_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    assert main(["report", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"harness: document={file}: {said}\n"
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("command", [["check"], ["repro", str(CASE)], ["mutants"]])
def test_a_folder_that_cannot_be_written_is_refused_before_any_rank_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([*command, "--report", str(tmp_path / "file" / "in")]) == 2
    assert "--report=" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "then"), [(0, 3), (1, 1), (3, 3), (130, 130)])
def test_a_page_that_cannot_be_written_changes_no_verdict_and_is_not_passed_over(
    status: int, then: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Report(report=tmp_path)
    document = campaign()
    with full_disk():
        assert answer(options, document, status) == then
    said = f"harness: --report={tmp_path}: cannot be written: File too large"
    if status == 0:
        said += "; everything passed, and the exit status is 3 for want of its page"
    assert capsys.readouterr().err == f"{said}\n"
    assert not list(tmp_path.iterdir())
    assert answer(options, document, status) == status
    assert list(tmp_path.iterdir())


def test_pages_say_that_a_step_was_compared_with_itself() -> None:
    means = '<p class="means">It computes something else than {}.</p>'
    assert means.format("plain training") in page_of(pictured())
    assert means.format(NAMES[ITSELF]) in page_of(pictured(against="self"))
    says = f"compared with {NAMES[ITSELF]}: what is wrong there as well does not show here"
    whole = campaign()
    assert says not in pages_of("x", whole)[0].text
    whole["campaign"]["against"] = "self"
    assert f"It is {says}." in pages_of("x", whole)[0].text
    verified = Verified(goldens=1, against=Counter(self=2)).record()
    assert f"2 runs are {says}." in pages_of("x", verified)[0].text


def shapes() -> dict[str, Callable[[], Any]]:
    """A document of every kind."""
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


def test_a_sweep_is_drawn_from_the_oldest_release_to_the_newest() -> None:
    document = json.loads((ROOT / "docs" / "conformance.json").read_text())
    pages = {page.name: page.text for page in pages_of("x", document)}
    (drawn,) = (text for text in pages.values() if "Releases: verl_sft.packed" in text)
    assert re.findall(r'<th scope="col">([\d.]+)</th>', drawn) == ["0.4.1", "0.5.0", "0.6.1"]
    (bug,) = re.findall(r'scope="row">predicted-mask</th>(.*)</tr>', drawn)
    assert re.findall(r'class="(\w+)"', bug) == ["failed", "failed", "passed"]


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("kind", shapes())
def test_whatever_is_in_a_document_it_is_drawn_or_refused_in_a_sentence(kind: str) -> None:
    text, random = json.dumps(shapes()[kind]()), Random(7)

    def drawn(changed: str) -> None:
        for page in pages_of("x", json.loads(changed)):
            assert page.text.count("<script") == 1

    seen = fuzz(drawn, (one_value_else(text, random) for _ in range(150)), NotDrawn, 150)
    assert seen.total() == 150
