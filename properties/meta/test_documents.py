"""The commands, tests and outputs that the documents show work as shown."""

import io
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import settings
from rich.console import Console

from harness.campaign.check import check
from harness.campaign.examine import Examiner
from harness.campaign.request import Request
from harness.campaign.tally import PASSING, Tally
from harness.case import parse
from harness.cli import main, read
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.commands import options_of
from properties.helpers.places import ROOT
from properties.helpers.shown import shown
from properties.planted.mistakes import tutorial

pytest_plugins = ["properties.helpers.own_pool", "pytester"]

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
CAMPAIGNS = (DOCS / "campaigns.md").read_text()
MAX_CANDIDATE_LINES = 80

QUICK = "labels rolled after the cut"
# Replacements that each put a real bug into the tutorial's candidate.
BUGS = {
    QUICK: (
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
    QUICK: "first   labels, row 0 position 0, the last token of rank 0's",
    "gradients off by sp": "looks   gradient-over-sp: every gradient is sp times too small",
    "exchange forgotten": "no rank sent anything to another",
}


def run_check(pool: RankPool, code: str) -> tuple[str, Tally, str]:
    """Judge a candidate of this code, in a file in the current folder; bundles go there, too."""
    Path("mine.py").write_text(code)
    request = Request(
        candidates=("mine.py:MINE",),
        sps=(2, 1, 4),
        dps=(1, 2),
        dtypes=("fp64", "fp32"),
        losses=("token-mean",),
        count=20,
        seed=0,
    )
    output = io.StringIO()
    summary = check(
        Examiner(request=request, session=Session(pool)), Console(file=output, width=100)
    )
    (tally,) = summary.tallies.values()
    return summary.verdict, tally, output.getvalue()


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_the_tutorial_candidate_is_short_and_passes(harness_pool: RankPool) -> None:
    assert len(tutorial().splitlines()) < MAX_CANDIDATE_LINES
    verdict, tally, output = run_check(harness_pool, tutorial())
    assert verdict in PASSING, output
    assert tally.judged == 20


# Without options, as the pages show it, the test draws a hundred cases.
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--hypothesis-profile=dev", "--harness-ranks=4"),
        pytest.param((), marks=pytest.mark.long),
    ],
)
def test_the_test_in_the_readme_passes_with_the_steps_of_all_tutorials(
    options: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    *_, test = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert test == shown("pytest.md")
    pytester.makepyfile(
        mine=shown("your-step.md"),
        own=tutorial(),
        hf=shown("huggingface.md"),
        test_mine=test,
        test_own=test.replace("mine.py:train_step", "own.py:MINE"),
        test_hf=test.replace("mine.py:train_step", "hf.py:HF"),
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["* cases judged in 1 launch, *"])
    # Cases outside the limits that a candidate states are not drawn.
    result.stdout.no_fnmatch_line("* UNSUPPORTED: its limits are*")


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug", [QUICK, *(pytest.param(bug, marks=pytest.mark.long) for bug in BUGS if bug != QUICK)]
)
@pytest.mark.usefixtures("own_pool")
def test_a_bug_in_the_tutorial_candidate_is_found_shrunk_explained_and_replayed(
    bug: str, harness_pool: RankPool, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict, tally, output = run_check(harness_pool, tutorial(*BUGS[bug]))
    assert verdict == "DIVERGED", output
    assert EXPLAINED[bug] in output
    (failure,) = tally.failures
    case = parse(failure["case"])
    assert len(case.rows) <= 2, output
    assert case.tokens <= case.sp + 2, output
    (command,) = re.findall(r"^  replay  python -m harness (.*)", output, re.MULTILINE)
    assert main(shlex.split(command)) == 1
    # Only the first lines, because a replay of a case line has no bundle.
    again = capsys.readouterr().out.splitlines()[:4]
    assert "\n".join(again) in output


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_the_sharded_campaign_on_the_page_runs_and_its_parts_add_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = re.findall(r"^python -m harness (.*shard.*)", CAMPAIGNS, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        # The 3000 cases of the page would take an hour.
        arguments = ["6" if word == "3000" else word for word in line.split()]
        end = arguments.index(">") if ">" in arguments else len(arguments)
        assert main(arguments[:end]) == 0
        output = capsys.readouterr().out
        for name in arguments[end + 1 :]:
            Path(name).write_text(output)
    assert "6 cases in" in output
    assert "shards 1-3 of 3" in output


def test_the_matrix_on_the_page_gives_every_shard_the_same_campaign() -> None:
    (shards,) = re.findall(r"shard: \[(.*)\]", CAMPAIGNS)
    inputs = dict(
        re.findall(r"^ +(candidates|options|shard): ([^{\n]+.*)$", CAMPAIGNS, re.MULTILINE)
    )
    line = f"{inputs['candidates']} {inputs['options']} --shard {inputs['shard']}"
    parts = []
    for shard in shards.split(", "):
        words = line.replace("${{ matrix.shard }}", shard).replace("${{ github.run_number }}", "9")
        options = options_of("check", *words.split())
        assert (options.cases, options.seed) == (3000, 9)
        parts.append(options.shard)
    assert [(part.number, part.of) for part in parts] == [(1, 3), (2, 3), (3, 3)]


def test_every_command_on_the_pages_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pages tell a reader to write this file; a recipe's file must exist.
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    pages = "\n".join(page.read_text() for page in (ROOT / "README.md", *DOCS.glob("*.md")))
    commands = re.findall(
        r"^ *python -m harness (.*)|`python -m harness ([^`]*)`", pages, re.MULTILINE
    )
    assert len(commands) > 20
    for block, span in commands:
        words = shlex.split((block or span).partition(" > ")[0])
        assert read(words)


def test_the_scripts_profiles_and_variables_on_the_pages_exist() -> None:
    for text in (README, CAMPAIGNS):
        for script in re.findall(r"\bci/[\w-]+(?:\.py)?(?!\.(?:txt|yaml)|\w)", text):
            assert (ROOT / script).stat().st_mode & 0o100, script
    for name, count in re.findall(r"^\| `(\w+)` \| (\d+) cases", CAMPAIGNS, re.MULTILINE):
        assert settings.get_profile(name).max_examples == int(count)
    assert set(re.findall(r"--hypothesis-profile=(\w+)", CAMPAIGNS)) == {"nightly"}
    profiles = (ROOT / "harness" / "plugin" / "profiles.py").read_text()
    variables = set(re.findall(r"\bHARNESS_[A-Z_]+", CAMPAIGNS))
    assert variables == set(re.findall(r"\bHARNESS_[A-Z_]+", profiles))
