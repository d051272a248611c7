"""What the documents show is what happens."""

import contextlib
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import settings
from rich.console import Console

from harness.campaign.check import check
from harness.campaign.request import Request
from harness.campaign.summary import PASSING
from harness.cli import build_parser, main
from harness.commands.options import read_part
from harness.ranks.pool import RankPool
from properties.helpers.places import ROOT

DOCS = ROOT / "docs"
TUTORIAL = (ROOT / "docs" / "writing-a-candidate.md").read_text()
MAX_CANDIDATE_LINES = 80

# Each turns the tutorial's candidate into one with a bug that somebody really had.
BUGS = {
    "labels rolled after the cut": (
        (
            "labels, counts = ids.roll(-1), counts.roll(-1)",
            "labels, counts = ids, counts.roll(-1)",
        ),
        ('watch("labels", labels)', 'watch("labels", labels := labels.roll(-1))'),
    ),
    "gradients off by sp": (
        (
            'emit(f"grad.{name}", parameter.grad)',
            'emit(f"grad.{name}", parameter.grad / case.sp)',
        ),
    ),
    "exchange forgotten": (
        ("            q, k, v = (exchange(x, 1, 0, rank.sp) for x in (q, k, v))\n", ""),
        ("~allowed,", "~allowed[mine, mine],"),
        (
            'return exchange(torch.einsum("nqk,knh->qnh", weights, v), 0, 1, rank.sp)',
            'return torch.einsum("nqk,knh->qnh", weights, v)',
        ),
    ),
}
EXPLAINED = {
    "labels rolled after the cut": "first   labels, row 0 position 0, the last token of rank 0's",
    "gradients off by sp": "looks   gradient-over-sp: every gradient is 0.5 of the reference",
    "exchange forgotten": "no rank entered an all-to-all",
}


def tutorial_candidate(*changes: tuple[str, str]) -> str:
    found = re.search(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    assert found
    code = found[1]
    for old, new in changes:
        assert code.count(old) == 1, f"the tutorial no longer has exactly one {old!r}"
        code = code.replace(old, new)
    return code


def run_check(pool: RankPool, file: Path) -> tuple[str, int, str]:
    request = Request(
        candidates=(f"{file}:MINE",),
        sps=(2, 1, 4),
        dps=(1, 2),
        dtypes=("fp64", "fp32"),
        losses=("token-mean",),
        count=20,
        seed=0,
    )
    with (file.parent / "output").open("w") as output:
        summary = check(request, pool, Console(file=output, width=100))
    (tally,) = summary.tallies.values()
    return summary.verdict, tally.cases, (file.parent / "output").read_text()


README = (ROOT / "README.md").read_text()
CAMPAIGNS = (ROOT / "docs" / "campaigns.md").read_text()


def test_the_tutorial_candidate_is_short() -> None:
    assert len(tutorial_candidate().splitlines()) < MAX_CANDIDATE_LINES


def test_the_tutorial_candidate_passes(harness_pool: RankPool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(tutorial_candidate())
    verdict, cases, output = run_check(harness_pool, file)
    assert verdict in PASSING, output
    assert cases == 20


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_tutorial_candidate_with_a_bug_diverges_and_is_explained(
    harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    monkeypatch.chdir(tmp_path)  # bundles go to the current folder
    file = tmp_path / "mine.py"
    file.write_text(tutorial_candidate(*BUGS[bug]))
    verdict, cases, output = run_check(harness_pool, file)
    assert verdict == "DIVERGED", output
    assert cases <= 20
    assert EXPLAINED[bug] in output


def test_the_readme_shows_a_failure_as_it_is_printed(
    harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = re.search(r"```\n(DIVERGED.*?)```", README, re.DOTALL)
    assert shown
    monkeypatch.chdir(tmp_path)
    file = Path("mine.py")
    file.write_text(tutorial_candidate(*BUGS["labels rolled after the cut"]))
    _, _, output = run_check(harness_pool, file)
    assert shown[1] in output


def test_the_campaign_that_is_shown_is_run_in_parts_and_put_together(
    harness_pool: RankPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "harness.commands.check.open_pool", lambda *_: contextlib.nullcontext(harness_pool)
    )
    shown = re.findall(r"^python -m harness (.*)", CAMPAIGNS, re.MULTILINE)
    assert len(shown) == 4
    for line in shown:
        # As many cases as are shown would take an hour.
        arguments = ["6" if word == "3000" else word for word in line.split()]
        into = arguments.index(">") if ">" in arguments else len(arguments)
        assert main(arguments[:into]) == 0
        said = capsys.readouterr().out
        for name in arguments[into + 1 :]:
            Path(name).write_text(said)
    assert "6 cases in" in said
    assert "shards 1-3 of 3" in said


def test_the_matrix_that_is_shown_gives_every_shard_the_same_campaign() -> None:
    (shards,) = re.findall(r"shard: \[(.*)\]", CAMPAIGNS)
    (line,) = re.findall(r"run: ci/check (.*)", CAMPAIGNS)
    parser = build_parser()
    seen = []
    for shard in shards.split(", "):
        words = line.replace("${{ matrix.shard }}", shard).replace("${{ github.run_number }}", "9")
        options = parser.parse_args(["check", *words.partition(" > ")[0].split()])
        assert options.json
        assert (options.cases, options.seed) == (3000, 9)
        seen.append(read_part(options.shard, options.cases))
    assert [(each.number, each.of) for each in seen] == [(1, 3), (2, 3), (3, 3)]


def test_every_command_that_is_shown_is_understood() -> None:
    pages = "\n".join(page.read_text() for page in (ROOT / "README.md", *DOCS.glob("*.md")))
    shown = re.findall(
        r"^ *python -m harness (.*)|`python -m harness ([^`]*)`", pages, re.MULTILINE
    )
    assert len(shown) > 20
    for block, span in shown:
        words = shlex.split((block or span).partition(" > ")[0])
        assert build_parser().parse_args(words).run


def test_the_scripts_profiles_and_variables_that_are_shown_are_there() -> None:
    for text in (README, CAMPAIGNS):
        for script in re.findall(r"\bci/[\w-]+(?:\.py)?", text):
            assert (ROOT / script).stat().st_mode & 0o100, script
    for name, count in re.findall(r"^\| `(\w+)` \| (\d+) cases", CAMPAIGNS, re.MULTILINE):
        assert settings.get_profile(name).max_examples == int(count)
    assert set(re.findall(r"--hypothesis-profile=(\w+)", CAMPAIGNS)) == {"nightly"}
    conftest = (ROOT / "conftest.py").read_text()
    variables = set(re.findall(r"\bHARNESS_[A-Z_]+", CAMPAIGNS))
    assert variables == set(re.findall(r"\bHARNESS_[A-Z_]+", conftest))
