"""The two failures on the anomalies page come out as the page shows them."""

import re
import shlex
import time

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED
from harness.diagnosis import Evidence
from harness.diagnosis.elimination import surviving_hypotheses
from harness.diagnosis.forward import Forward, plain_passes
from harness.diagnosis.readout import read_loss
from harness.judge import Session
from harness.judge.diagnosed import DIAGNOSE_SECONDS, Asked
from harness.ranks.pool import RankPool
from properties.helpers.places import ROOT

pytest_plugins = ["properties.helpers.own_pool"]

PAGE = (ROOT / "docs" / "anomalies.md").read_text()
COMMANDS = re.findall(r"```\npython -m harness (repro .*)\n```", PAGE)
OUTPUTS = re.findall(r"```\n(  looks .*\n  cause .*\n)```", PAGE)[-len(COMMANDS) :]
CASES = [parse(shlex.split(words)[1]) for words in COMMANDS]
CANDIDATES = [str(ROOT / shlex.split(words)[-1]) for words in COMMANDS]


def evidence(number: int, pool: RankPool) -> Evidence:
    ask = Asked(locate(CANDIDATES[number]), Session(pool), time.monotonic() + DIAGNOSE_SECONDS)
    found = ask(CASES[number])
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_both_commands_print_what_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == len(OUTPUTS) == 2
    for case, candidate, output in zip(CASES, CANDIDATES, OUTPUTS, strict=True):
        assert main(["repro", str(case), "--candidate", candidate]) == DIVERGED
        assert output in capsys.readouterr().out


def test_on_one_case_alone_the_listed_hypotheses_are_left(harness_pool: RankPool) -> None:
    listed = re.findall(r"^\* `([\w-]+)`: (.*)$", PAGE, re.MULTILINE)
    assert len(listed) == 4
    assert list(surviving_hypotheses([evidence(0, harness_pool)], [])) == listed


def test_weights_and_labels_are_read_as_the_page_lists_them(harness_pool: RankPool) -> None:
    rows = re.findall(
        r"^\| (\d) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
    )
    seen = evidence(1, harness_pool)
    forward = Forward(seen.case, plain_passes(seen.case, seen.owner_n))
    reading = read_loss(forward, seen.got, seen.labels_n)
    assert reading is not None
    columns = (
        range(seen.case.tokens),
        seen.ids_n,
        reading.label_n,
        seen.oracle["weight"].values,
        reading.weight_n,
    )
    assert len(rows) == seen.case.tokens
    for i, column in enumerate(columns):
        assert [float(row[i]) for row in rows] == pytest.approx(list(column))
