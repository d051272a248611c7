"""What the documents show is what happens."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from harness.check import Request, check
from harness.compare import Verdict
from harness.ranks.pool import RankPool

ROOT = Path(__file__).parent.parent
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
    "gradients off by sp": "looks   every gradient is 0.5 of the reference = 1/sp",
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


def run_check(pool: RankPool, file: Path) -> tuple[Verdict, int, str]:
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


def test_the_tutorial_candidate_is_short() -> None:
    assert len(tutorial_candidate().splitlines()) < MAX_CANDIDATE_LINES


def test_the_tutorial_candidate_passes(harness_pool: RankPool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(tutorial_candidate())
    verdict, cases, output = run_check(harness_pool, file)
    assert verdict.passed, output
    assert cases == 20


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_tutorial_candidate_with_a_bug_diverges_and_is_explained(
    harness_pool: RankPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    monkeypatch.chdir(tmp_path)  # bundles go to the current folder
    file = tmp_path / "mine.py"
    file.write_text(tutorial_candidate(*BUGS[bug]))
    verdict, cases, output = run_check(harness_pool, file)
    assert verdict is Verdict.DIVERGED, output
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
