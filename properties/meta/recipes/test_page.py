"""The step that docs/your-step.md shows is short, right, and found out when it is changed."""

import ast
import re
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands.options import DIVERGED
from harness.compare import Verdict
from harness.ranks.pool import RankPool
from harness.recipes import losses
from harness.recipes.families import FAMILIES
from harness.report import explain
from properties.helpers.judging import evaluate_all
from properties.helpers.places import ROOT
from properties.helpers.shown import shown
from properties.meta.recipes.test_recipes import drawn

pytest.importorskip("transformers")
PAGE = "your-step.md"
# What each change makes wrong.
CHANGES = {
    "the last label of a shard is lost": (
        'labels = F.pad(batch["labels"][:, 1:], (0, pad + 1), value=-100)',
        'labels = F.pad(batch["labels"], (0, pad), value=-100)',
    ),
    "tokens are counted by rank": ("dist.all_reduce(count :=", "(count :="),
    "gradients are not summed": ("dist.all_reduce(parameter.grad)", "pass"),
    "padding is seen": ("& real.bool()[:, None] |", "|"),
}
SHIFTED_AFTER_THE_CUT = (
    CHANGES["the last label of a shard is lost"],
    (
        "logits.float().flatten(0, 1)",
        "logits.float().flatten(0, 1); labels = F.pad(labels[:, 1:], (0, 1), value=-100)",
    ),
)


def test_the_function_has_at_most_30_lines_and_its_recipe_is_one() -> None:
    tree = ast.parse(shown(PAGE))
    (function,) = (
        each
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and each.name == "train_step"
    )
    assert function.end_lineno is not None
    assert function.end_lineno - function.lineno < 30
    (decorator,) = function.decorator_list
    assert decorator.end_lineno == decorator.lineno


@pytest.mark.slow
def test_the_step_is_right(pool: RankPool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(shown(PAGE))
    cases = [case for case in drawn("", 12) if case.window is None]
    comparisons = list(evaluate_all(((case, f"{file}:train_step") for case in cases), pool))
    assert len(comparisons) >= 4
    for comparison in comparisons:
        assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_step_is_found_out(change: str, pool: RankPool, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(shown(PAGE, CHANGES[change]))
    cases = [case for case in drawn("", 24) if case.window is None]
    jobs = ((case, f"{file}:train_step") for case in cases)
    assert Verdict.DIVERGED in (seen.verdict for seen in evaluate_all(jobs, pool))


@pytest.mark.slow
def test_check_takes_a_step_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(shown(PAGE, CHANGES["gradients are not summed"]))
    words = "check mine.py:train_step --cases 10 --sp 2 --dp 1 --dtype fp64 --no-diagnose"
    assert main(words.split()) == DIVERGED
    printed = capsys.readouterr().out
    assert "DIVERGED  candidate mine.py:train_step" in printed
    assert "first   grad.lm_head.weight" in printed


@pytest.mark.slow
def test_the_readme_shows_what_check_prints_if_labels_are_shifted_after_the_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(shown(PAGE, *SHIFTED_AFTER_THE_CUT))
    assert main(["check", "mine.py:train_step", "--ranks", "4"]) == DIVERGED
    (block,) = re.findall(r"```\n(DIVERGED.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block in capsys.readouterr().out


def test_the_page_names_every_family_and_loss() -> None:
    page = (ROOT / "docs" / PAGE).read_text()
    parts = {
        *("logits", "logps", "picked", "mean", "mean_of_row", "surrogate", "entropy"),
        "in_pairs",
        *("load_balance", "router_z", "values", "gae", "whitened"),
    }
    names = {
        node.name
        for node in ast.parse(Path(losses.__file__).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert all(f"`{name}`" in page for name in [*FAMILIES, *(names - parts)])
