"""What the page shows of two failures is what comes out."""

import re
import shlex
import time

import pytest

from harness.candidates import locate
from harness.case import parse
from harness.cli import main
from harness.commands.options import DIVERGED
from harness.diagnosis import Evidence
from harness.diagnosis.elimination import hypotheses_left
from harness.diagnosis.forward import Forward, passes
from harness.diagnosis.readout import read_loss
from harness.judge import Session
from harness.judge.diagnosed import DIAGNOSE_SECONDS, Asked
from harness.ranks.pool import RankPool
from properties.helpers.places import ROOT

pytest_plugins = ["properties.helpers.own_pool"]

PAGE = (ROOT / "docs" / "anomalies.md").read_text()
SHOWN = re.findall(r"```\npython -m harness (repro .*)\n```", PAGE)
SAID = re.findall(r"```\n(  looks .*\n  cause .*\n)```", PAGE)[-len(SHOWN) :]
CASES = [parse(shlex.split(words)[1]) for words in SHOWN]
CANDIDATES = [str(ROOT / shlex.split(words)[-1]) for words in SHOWN]


def evidence(number: int, pool: RankPool) -> Evidence:
    asked = Asked(locate(CANDIDATES[number]), Session(pool), time.monotonic() + DIAGNOSE_SECONDS)
    found = asked(CASES[number])
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_both_commands_say_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(SHOWN) == len(SAID) == 2
    for case, candidate, said in zip(CASES, CANDIDATES, SAID, strict=True):
        assert main(["repro", str(case), "--candidate", candidate]) == DIVERGED
        assert said in capsys.readouterr().out


def test_on_one_case_alone_those_are_left_that_are_listed(harness_pool: RankPool) -> None:
    listed = re.findall(r"^\* `([\w-]+)`: (.*)$", PAGE, re.MULTILINE)
    assert len(listed) == 4
    assert list(hypotheses_left([evidence(0, harness_pool)], [])) == listed


def test_weights_and_labels_are_read_as_they_are_listed(harness_pool: RankPool) -> None:
    rows = re.findall(
        r"^\| (\d) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE
    )
    seen = evidence(1, harness_pool)
    forward = Forward(seen.case, passes(seen.case, seen.owner_n))
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
    for place, told in enumerate(columns):
        assert [float(row[place]) for row in rows] == pytest.approx(list(told))
