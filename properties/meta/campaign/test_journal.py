"""A campaign that was killed goes on where it was, and comes to what it would have come to."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.journal import BadJournal, Journal
from harness.campaign.pending import Ask
from harness.cli import main
from harness.engine.lot import SIZE, WHOLE, Part
from properties.helpers.places import ROOT
from properties.helpers.wait import eventually
from properties.meta.campaign.test_conduct import LOTS, REQUEST, judged

pytest_plugins = ["properties.helpers.own_pool"]

HERE = replace(REQUEST, candidates=("native-local", "native-gather"))
ASKED = tuple(map(Ask, REQUEST.candidates))


def passes(*_: object) -> str:
    return ""


def kept(folder: Path, lots: int) -> Path:
    """A folder in which so many lots are known; its lots."""
    journal = Journal.of(folder, HERE, 2, WHOLE)
    for lot in LOTS[:lots]:
        journal.keep(lot, ASKED, judged(lot, ASKED, passes))
    journal.close()
    return folder / "lots.jsonl"


def test_what_was_kept_is_known_and_kept_once(tmp_path: Path) -> None:
    lots = kept(tmp_path / "new" / "folder", 2)
    journal = Journal.of(lots.parent, HERE, 2, WHOLE)
    assert journal.known == {lot: (ASKED, judged(lot, ASKED, passes)) for lot in LOTS[:2]}
    assert journal.told() == f"known before this run: {2 * SIZE} cases in 2 lots"
    before = lots.read_bytes()
    journal.keep(LOTS[0], ASKED, judged(LOTS[0], ASKED, passes))
    assert lots.read_bytes() == before


def test_a_line_that_was_not_written_to_its_end_is_not_known_and_spoils_nothing(
    tmp_path: Path,
) -> None:
    lots = kept(tmp_path, 2)
    whole = lots.read_bytes()
    for cut in (1, 40, len(whole) // 2 - 2):
        lots.write_bytes(whole[:-cut])
        journal = Journal.of(tmp_path, HERE, 2, WHOLE)
        assert [*journal.known] == LOTS[:1]
        journal.keep(LOTS[1], ASKED, judged(LOTS[1], ASKED, passes))
        journal.close()
        assert [json.loads(line)["number"] for line in lots.read_text().splitlines()] == [0, 1]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "holds a campaign with seed=0, and seed=1 was asked for; name another"),
        ({"count": 7}, f"holds a campaign with count={6 * SIZE}, and count=7 was asked for"),
        ({"candidates": ("native-local",)}, "holds a campaign with candidates=['native-local', "),
    ],
)
def test_the_folder_of_another_campaign_is_refused(
    other: dict[str, Any], said: str, tmp_path: Path
) -> None:
    kept(tmp_path, 1)
    with pytest.raises(BadJournal) as caught:
        Journal.of(tmp_path, replace(HERE, **other), 2, WHOLE)
    assert str(caught.value).startswith(f"--resume={tmp_path}: {said}")
    with pytest.raises(BadJournal, match="holds a campaign with shard=1/1, and shard=1/2 was"):
        Journal.of(tmp_path, HERE, 2, Part(1, 2))
    with pytest.raises(BadJournal, match="holds a campaign with ranks=2, and ranks=4 was"):
        Journal.of(tmp_path, HERE, 4, WHOLE)


def damaged(change: Callable[[Path], object], file: str, folder: Path) -> str:
    kept(folder, 2)
    change(folder / file)
    with pytest.raises(BadJournal) as caught:
        Journal.of(folder, HERE, 2, WHOLE)
    return str(caught.value).removeprefix(f"--resume={folder}: ")


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    def other(change: Callable[[dict[str, Any]], object], file: Path) -> None:
        first, second = file.read_text().splitlines()
        said = json.loads(second)
        change(said)
        file.write_text(f"{first}\n{json.dumps(said)}\n")

    for name, change in {
        "judged twice": lambda said: said["found"].update(cases=999),
        "no number": lambda said: said.update(number="1"),
        "not asked": lambda said: said["asked"][0].append(1),
        "no time": lambda said: said.update(elapsed=float("nan")),
    }.items():
        said = damaged(partial(other, change), "lots.jsonl", tmp_path / name)
        assert said == "lots.jsonl is damaged in line 2; remove it, and the campaign begins anew"
    for number, text in enumerate(("", "[]", "no"), 2):
        folder = tmp_path / str(number)
        said = damaged(lambda file, text=text: file.write_text(text), "campaign.json", folder)  # type: ignore[misc]
        assert said == "campaign.json is damaged; name another folder"


def test_two_processes_cannot_go_on_with_one_campaign(tmp_path: Path) -> None:
    first = Journal.of(tmp_path, HERE, 2, WHOLE)
    with pytest.raises(BadJournal, match="another process goes on with this campaign"):
        Journal.of(tmp_path, HERE, 2, WHOLE)
    first.close()
    Journal.of(tmp_path, HERE, 2, WHOLE)


def test_what_is_known_of_other_code_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("MINE = None")
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/helper.py").write_text("A = 1")
    asked = replace(HERE, candidates=("mine.py:MINE",))
    for file in ("mine.py", "package/helper.py", "beside.py"):
        Journal.of(tmp_path / "kept", asked, 2, WHOLE).close()
        Journal.of(tmp_path / "kept", asked, 2, WHOLE).close()
        with Path(file).open("a") as changed:
            changed.write("\n")
        with pytest.raises(BadJournal, match="its code has changed since, so that what is known"):
            Journal.of(tmp_path / "kept", asked, 2, WHOLE)
        (tmp_path / "kept" / "campaign.json").unlink()


# Ranks that are given a case of a later lot wait for ever, or until there is a file.
WAITS = """
import signal
from pathlib import Path
from harness.candidates.own.native import LocalDialect

class Waits(LocalDialect):
    name = "waits"

    def run(self, case, rank, emit):
        while case.seed >= 1 << 17 and not Path("go").exists():
            signal.pause()
        super().run(case, rank, emit)

WAITS = Waits()
"""
COMMAND = [
    "check", "--candidate", "waits.py:WAITS", "--sp", "2", "--dp", "1", "--dtype", "fp64",
    "--loss", "token-mean", "--set", "layers=1", "--cases", "120", "--ranks", "4", "--json",
    "--resume", "kept",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("own_pool")
def test_a_campaign_that_is_killed_ends_as_if_it_had_run_through(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("waits.py").write_text(WAITS)
    lots = Path("kept/lots.jsonl")
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *COMMAND],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert eventually(lambda: lots.exists() and b"\n" in lots.read_bytes())
        process.kill()
    Path("go").touch()
    assert main(COMMAND) == 0
    written = capsys.readouterr()
    assert "known before this run: 100 cases in 1 lots" in written.err
    resumed = json.loads(written.out)
    assert main(COMMAND[:-2]) == 0
    whole = json.loads(capsys.readouterr().out)
    for document in (resumed, whole):
        assert document["candidates"]["waits.py:WAITS"].pop("pace")
        assert document.pop("seconds") > 0
    assert resumed == whole
