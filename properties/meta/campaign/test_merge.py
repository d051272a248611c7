"""Documents of shards: which are refused, how they add up, and how they are shown."""

import copy
import dataclasses
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from harness.campaign.closing import closing
from harness.campaign.digest import BegunCases
from harness.campaign.merge import merge
from harness.campaign.request import Request
from harness.campaign.summary import FORMAT, Summary
from harness.campaign.table import MOST_UNMET, show
from harness.campaign.tally import Histogram, Tally
from harness.case import parse
from harness.cli import main
from harness.compare import KeyResult, Verdict
from properties.helpers.commands import run_to_end, times_of_importing
from properties.helpers.comparisons import comparison_with

CASE = parse("case/1 rows=2:11")


def tally_of(errors: Sequence[float]) -> Tally:
    """Return a tally of cases that passed with these errors."""
    tally = Tally()
    for used in errors:
        key = KeyResult("loss", 1, 0, used)
        tally.add(comparison_with(case=CASE, candidate="a", verdict=Verdict.WITHIN, keys=(key,)))
    return tally


def summary(
    number: int,
    of: int,
    *,
    situations: int = 2,
    errors: Sequence[float] = (0.2,),
    count: int | None = None,
) -> Summary:
    """Return a shard in which all cases passed; it has one case unless `errors` are given."""
    request = Request(
        candidates=("a", "b"), sps=(1, 2), dps=(1,), dtypes=("fp64",), losses=("token-mean",),
        count=count or of * len(errors), seed=7, rare_sps=(3,),
    )  # fmt: skip
    names = [f"situation {n}" for n in range(situations)]
    return Summary(
        request=request,
        ranks=2,
        versions={"harness": "1", "torch": "2"},
        size=len(errors),
        of=of,
        shards=(number,),
        tallies={"a": tally_of(errors), "b": tally_of([0.0] * len(errors))},
        situations=Counter({name: n for n, name in enumerate(names)}),
        cases=len(errors),
        seconds=0.5,
    )


def printed(found: Summary, width: int = 100) -> str:
    output = io.StringIO()
    show(found, Console(file=output, width=width))
    return output.getvalue()


@given(st.lists(st.floats(0, 1), min_size=6, max_size=20), st.integers(1, 6), st.randoms())
def test_documents_are_read_back_as_written_and_add_up_in_any_order(
    errors: list[float], of: int, random: Any
) -> None:
    parts = [
        (str(n), summary(n, of, errors=errors[n - 1 :: of], count=len(errors)))
        for n in range(1, of + 1)
    ]
    whole = merge(parts)
    for _, part in (*parts, ("", whole)):
        assert Summary.from_record(json.loads(json.dumps(part.record()))) == part
    random.shuffle(parts)
    assert merge(parts) == whole
    assert whole.cases == whole.tallies["a"].judged == len(errors)
    assert whole.tallies["a"].most == max(errors)
    assert whole.missing == ()
    assert merge([("", merge(parts[:1])), *parts[1:]]) == whole


def write(folder: Path, name: str, found: Summary, *change: Any) -> str:
    """Write a document, in which the value at the end of `change` replaces that at its path."""
    document = copy.deepcopy(found.record())
    if change:
        *path, last, value = change
        inner = document
        for step in path:
            inner = inner[step]
        inner[last] = value
    (folder / name).write_text(json.dumps(document))
    return name


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return a function that merges documents, and returns the line that refuses them."""
    monkeypatch.chdir(tmp_path)

    def error_of_merge(*names: str) -> str:
        assert main(["merge", *names]) == 2
        written = capsys.readouterr()
        assert written.out == ""
        assert written.err.count("\n") == 1
        return written.err.removeprefix("harness: ").removesuffix("\n")

    return error_of_merge


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("campaign", "seed", 8), "seed=8, but 1.json has seed=7"),
        (("campaign", "sps", [2, 1]), "sps=2,1, but 1.json has sps=1,2"),
        (("campaign", "dps", [2]), "dps=2, but 1.json has dps=1"),
        (("campaign", "dtypes", ["fp32"]), "dtypes=fp32, but 1.json has dtypes=fp64"),
        (("campaign", "losses", ["row-mean"]), "losses=row-mean, but 1.json has losses=token"),
        (("campaign", "candidates", ["b", "a"]), "candidates=b,a, but 1.json has candidates=a,b"),
        (("campaign", "ranks", 4), "ranks=4, but 1.json has ranks=2"),
        (("versions", "torch", "3"), "torch=3, but 1.json has torch=2"),
        (("versions", "hypothesis", "6"), "hypothesis=6, but 1.json has hypothesis=None"),
        (("situations", {"new": 1}), "situations=new, but 1.json has situations=situation 0,"),
    ],
)
def test_shards_of_another_campaign_are_refused(
    change: tuple[Any, ...], message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    first = write(tmp_path, "1.json", summary(1, 2))
    other = write(tmp_path, "2.json", summary(2, 2), *change)
    assert refused(first, other).startswith(f"document=2.json: {message}")


def test_a_shard_of_another_number_of_shards_is_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    first = write(tmp_path, "1.json", summary(1, 2, errors=(0.1, 0.2, 0.3)))
    other = write(tmp_path, "2.json", summary(2, 3, errors=(0.1, 0.2)))
    assert refused(first, other).startswith("document=2.json: shards=3, but 1.json has shards=2; ")


def test_a_shard_of_a_campaign_of_another_size_is_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    first = write(tmp_path, "1.json", summary(1, 2))
    other = write(tmp_path, "2.json", summary(2, 2, errors=(0.1, 0.2)))
    assert refused(first, other).startswith("document=2.json: count=4, but 1.json has count=2; ")


def begun(number: int, judged: int, drawn: int) -> Summary:
    """Return one of two shards, which has begun one case of the lot."""
    cases = BegunCases(drawn=f"{drawn:016x}", count=1, judged=f"{judged:016x}")
    return replace(summary(number, 2), begun={"0": cases})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            begun(2, 3, 8),
            "document=2.json: lot 0 has other cases than in 1.json; merge shards that",
        ),
        (begun(2, 4, 7), ""),
        (begun(2, 3, 7), "document=1.json: the cases of lot 0 that were judged in these 2 docu"),
        (
            replace(begun(2, 4, 7), begun={"1": BegunCases("0" * 16)}),
            "document=2.json: is damaged; check --json did not write it like this",
        ),
        (
            replace(begun(2, 4, 7), begun={"0": BegunCases(f"{7:016x}", 2, f"{6:016x}")}),
            "document=2.json: is damaged; check --json did not write it like this",
        ),
    ],
)
def test_shards_that_judged_other_cases_than_their_lots_have_are_refused(
    second: Summary, message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    names = [write(tmp_path, "1.json", begun(1, 3, 7)), write(tmp_path, "2.json", second)]
    if message:
        assert refused(*names).startswith(message)
    else:
        assert main(["merge", *names]) == 0


def test_a_shard_that_is_given_twice_is_refused(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    first = write(tmp_path, "1.json", summary(1, 2))
    write(tmp_path, "copy.json", summary(1, 2))
    for again in (first, "copy.json"):
        message = f"document={again}: holds shard 1/2, and so does 1.json; count each shard once"
        assert refused(first, again) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "was not written by check --json"),
        ('{"versions": {}}', "was not written by check --json"),
        ('{"format": 1}', f"has format 1; this version reads {FORMAT}"),
        (f'{{"format": {FORMAT}}}', "is damaged"),
    ],
)
def test_a_file_that_is_no_document_is_refused(
    text: str, message: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "1.json").write_text(text)
    assert refused("1.json").startswith(f"document=1.json: {message}")
    assert refused("gone.json") == "document=gone.json: cannot be read: No such file or directory"


@pytest.mark.parametrize(
    "change",
    [
        ("verdict", "EQUAL"),
        ("shards", "examined", [3]),
        ("shards", "examined", [1, 1]),
        ("shards", "examined", [1, 2]),
        ("shards", "examined", []),
        ("shards", "of", 10**8),
        ("cases", 0),
        ("cases", 999_999),
        ("cases", "1"),
        ("size", 21),
        ("situations", {"situation 0": 2}),
        ("situations", {"situation 0": "1"}),
        ("candidates", "a", "elements", "many"),
        ("candidates", "b", "verdicts", {}),
        ("buckets", [1]),
        ("colour", "red"),
        ("candidates", {}),
        ("candidates", "a", None),
        ("candidates", "a", "verdicts", {"EQUAL": 2}),
        ("candidates", "a", "verdicts", {"SPLENDID": 1}),
        ("candidates", "a", "histogram", "fp64", "counts", [1]),
        ("candidates", "a", "histogram", "fp64", "counts", [0, 0, 0, 0, 2, -1, 0]),
        ("candidates", "a", "elements", -1),
        ("candidates", "a", "pace", {"2": {"cases": 1, "seconds": 0.5, "most": -0.5}}),
        ("candidates", "a", "coverage", "judged", {"x": -1}),
        ("candidates", "a", "leanings", {"fp8": {}}),
        ("candidates", "a", "bounds", {"values": {}, "more": {}}),
        ("seconds", -0.5),
        ("seconds", float("inf")),
        ("seconds", float("nan")),
        ("begun", {"0": {"drawn": "0" * 16, "count": 0, "judged": "x" * 16}}),
        ("candidates", "a", "failures", [{"case": "case/2"}]),
        ("candidates", "a", "failures", [{"case": str(CASE)}]),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(
    change: tuple[Any, ...], tmp_path: Path, refused: Callable[..., str]
) -> None:
    name = write(tmp_path, "1.json", summary(1, 2), *change)
    assert refused(name) == "document=1.json: is damaged; check --json did not write it like this"


def test_missing_shards_are_named_and_make_the_verdict_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = [write(tmp_path, f"{k}.json", summary(k, 6)) for k in range(1, 7)]
    assert main(["merge", *names]) == 0
    assert "missing" not in capsys.readouterr().out
    assert main(["merge", names[1], names[5]]) == 3
    text = capsys.readouterr().out
    assert "missing  shards 1, 3-5 of 6: nothing was examined there" in text
    assert main(["merge", "--json", *names[1:]]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "FAULT"
    assert document["shards"]["missing"] == [1]


@pytest.mark.slow
def test_merging_needs_no_torch_and_less_than_three_times_what_importing_its_libraries_takes(
    tmp_path: Path,
) -> None:
    names = [write(tmp_path, f"{k}.json", summary(k, 16)) for k in range(1, 17)]
    code = "import sys; from harness.cli import main; status = main(sys.argv[1:]); "
    code += "sys.exit(9 if {'torch', 'numpy', 'hypothesis'} & {*sys.modules} else status)"

    def merge() -> None:
        run = run_to_end(sys.executable, "-c", code, "merge", *names, cwd=tmp_path)
        assert run.returncode == 0
        assert "16 cases" in run.stdout

    assert times_of_importing(merge) < 3


def test_situations_that_no_judged_case_met_are_named_up_to_a_few() -> None:
    found = summary(1, 1, situations=36)
    assert "\nsituations met: 35 of 36\n  never    situation 0\n" in printed(found)
    found.refused["situation 0"] = 1
    assert "\nsituations met: 35 of 36\n  refused  situation 0\n" in printed(found)
    found.situations.update({name: -count for name, count in found.situations.items()})
    text = printed(found)
    assert "\nsituations met: 0 of 36\n" in text
    assert text.count("\n  never    situation ") == MOST_UNMET - 1
    assert f"\n  and {36 - MOST_UNMET} more, which --json lists\n" in text


def test_a_table_that_does_not_fit_is_printed_as_lines_and_nothing_is_cut() -> None:
    found, long = summary(1, 1), "deepspeed.engine-zero2-all-the-way@0.19.8"
    found.tallies[long] = found.tallies.pop("b")
    narrow = printed(found, width=80).splitlines()
    assert f"  {long}: within 1, elements 1, used 0" in narrow
    assert f"  {long}: dtype fp64, ≤0.001 1, most 0" in narrow
    assert f" {long}      ·       1 " in printed(found, width=120)


FAILED = {"verdict": "DIVERGED", "case": str(CASE)}
LACKS = (
    "a supports 1 of 3 cases that were drawn, too few to be judged on 5; 2 times because of "
    "'windows': leave such cases out with --loss, --dtype, --sp, --dp, --ranks, --kernel and --set"
)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({}, 0, "every case passed"),
        ({"missing": (2,)}, 3, "shards are missing"),
        ({"ended": "interrupted"}, 130, "interrupted"),
        ({"tallies": {"a": Tally()}}, 3, "a was given no case"),
        (
            {"tallies": {"a": Tally(Counter(UNSUPPORTED=2, EQUAL=1), Counter(windows=2), 4)}},
            3,
            LACKS,
        ),
        (
            {"tallies": {"a": Tally(Counter(KNOWN=1, EQUAL=1), known=Counter(key=1))}},
            1,
            "a fails as is listed of it, which passes with --known pass",
        ),
        (
            {"tallies": {"a": Tally(Counter(DIVERGED=1), failures=[FAILED])}},
            1,
            f"a is DIVERGED on {CASE}",
        ),
    ],
)
def test_the_last_line_explains_the_exit_status(
    change: dict[str, Any], status: int, reason: str
) -> None:
    assert closing(replace(summary(1, 1), **change), status) == f"exit status {status}: {reason}"


def test_a_note_warns_if_a_step_seems_to_compute_in_a_finer_dtype() -> None:
    for most, warns in ((0.2, False), (1e-7, True), (0.0, False)):
        tally = Tally(Counter(WITHIN=1), used={"bf16": Histogram([1, *[0] * 6], most)})
        text = printed(replace(summary(1, 1), tallies={"a": tally}))
        assert ("it computes in more than bf16, this says nothing of bf16" in text) is warns


def test_refused_cases_are_listed_by_reason() -> None:
    refused = Counter(windows=3) + Counter(f"reason {n}" for n in range(12))
    tally = Tally(Counter(UNSUPPORTED=15), refused)
    text = printed(replace(summary(1, 1), tallies={"a": tally}))
    assert (
        "a does not support, of 15 cases that were drawn\n    3  windows\n    1  reason 0\n"
        in text
    )
    assert "    3  for other reasons\n" in text


def test_cases_that_are_not_judgeable_have_a_line_of_their_own() -> None:
    tally = Tally(Counter(UNSUPPORTED=7, WITHIN=11), Counter(windows=4))
    tally.unjudgeable = {"bf16": Counter({"grad.q": 1, "grad.k": 2})}
    found = replace(summary(1, 1), tallies={"a": tally})
    line = "a: 3 of 14 cases were not judgeable in bf16, most often because rounding hides grad.k"
    assert f"\n{line}\n" in printed(found)
    assert closing(found, 0) == (
        "exit status 0: every case passed; more than a tenth of the cases of a were not judgeable "
        "in bf16: ask for a dtype that rounds less"
    )
    tally.verdicts["WITHIN"] = 100
    assert closing(found, 0) == "exit status 0: every case passed"
    nothing = Tally(Counter(UNSUPPORTED=3), lacking=5, unjudgeable=tally.unjudgeable)
    last_line = closing(replace(found, tallies={"a": nothing}), 3)
    assert last_line.startswith(
        "exit status 3: a could be judged on none of 3 cases; more than a tenth"
    )


def test_against_itself_the_number_of_compared_gradients_is_shown() -> None:
    first = summary(1, 1)
    found = replace(first, request=dataclasses.replace(first.request, against="self"))
    found.tallies["a"].gradients, found.tallies["a"].zeros = 1200, 30
    found.tallies["a"] += found.tallies["a"]
    line = "a: 2,400 gradients were compared in 2 cases that passed, 60 of them zero everywhere\n"
    assert line in printed(found)
    assert "gradients were" not in printed(first)


def test_the_last_line_says_how_many_small_cases_there_are_and_who_refuses_some() -> None:
    first = summary(1, 1, errors=[0.1] * 4)
    every = replace(first, request=dataclasses.replace(first.request, up_to=3))
    assert closing(every, 0) == "exit status 0: all 4 cases of up to 3 tokens passed"
    refusing = replace(every, tallies={"a": Tally(Counter(EQUAL=3, UNSUPPORTED=1))})
    line = "exit status 0: of all 4 cases of up to 3 tokens a was judged on 3, which passed"
    assert closing(refusing, 0) == line
    part = replace(every, request=dataclasses.replace(every.request, count=8))
    assert closing(part, 0) == "exit status 0: all 4 of the 8 cases of up to 3 tokens passed"
    cut = replace(every, ended="limit")
    assert closing(cut, 0) == "exit status 0: every case that was judged passed"


def test_of_nothing_that_passed_no_error_and_no_gradient_is_shown() -> None:
    first = summary(1, 1)
    tally = Tally(Counter(DIVERGED=1))
    request = dataclasses.replace(first.request, against="self")
    found = printed(replace(first, request=request, tallies={"a": tally}))
    assert "compared with its own step at sp 1" in found
    assert "by their largest error" not in found
    assert "gradients were" not in found


def test_errors_are_shown_by_candidate_and_dtype() -> None:
    (row,) = (
        line for line in printed(summary(1, 1)).splitlines() if "a  " in line and "fp" in line
    )
    assert row.split() == ["a", "fp64", *"····1··", "0.2"]


def test_candidates_of_one_file_name_have_different_names_in_every_table() -> None:
    names = ("somewhere/a/mine.py:STEP", "somewhere/b/mine.py:STEP")
    text = printed(replace(summary(1, 1), tallies={name: tally_of([0.2]) for name in names}))
    first_words = [line.split()[0] for line in text.splitlines() if "mine.py" in line]
    assert first_words == ["a/mine.py:STEP", "b/mine.py:STEP"] * 2
