"""A campaign that was killed goes on from its journal, and ends as if it had run through."""

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
from harness.campaign.pending import PendingCandidate
from harness.cli import main
from harness.engine.lot import SIZE, WHOLE, Part
from properties.helpers.commands import IMPORTS
from properties.helpers.wait import eventually
from properties.meta.campaign.test_conduct import LOTS, REQUEST, judge

pytest_plugins = ["properties.helpers.own_pool"]

OWN_REQUEST = replace(REQUEST, candidates=("native-local", "native-gather"))
PENDING = tuple(map(PendingCandidate, REQUEST.candidates))


def passes(*_: object) -> str:
    return ""


def write_lots(folder: Path, lots: int) -> Path:
    """Write so many lots to the journal in a folder; return its file of lots."""
    journal = Journal.of(folder, OWN_REQUEST, 2, WHOLE)
    for lot in LOTS[:lots]:
        journal.write(lot, PENDING, judge(lot, PENDING, passes))
    journal.close()
    return folder / "lots.jsonl"


def test_a_written_lot_is_known_and_written_only_once(tmp_path: Path) -> None:
    lots = write_lots(tmp_path / "new" / "folder", 2)
    journal = Journal.of(lots.parent, OWN_REQUEST, 2, WHOLE)
    assert journal.known == {lot: (PENDING, judge(lot, PENDING, passes)) for lot in LOTS[:2]}
    assert journal.line() == f"known before this run: {2 * SIZE} cases in 2 lots"
    before = lots.read_bytes()
    journal.write(LOTS[0], PENDING, judge(LOTS[0], PENDING, passes))
    assert lots.read_bytes() == before


def test_an_unfinished_last_line_is_ignored_and_does_not_damage_the_next(
    tmp_path: Path,
) -> None:
    lots = write_lots(tmp_path, 2)
    whole = lots.read_bytes()
    for cut in (1, 40, len(whole) // 2 - 2):
        lots.write_bytes(whole[:-cut])
        journal = Journal.of(tmp_path, OWN_REQUEST, 2, WHOLE)
        assert [*journal.known] == LOTS[:1]
        journal.write(LOTS[1], PENDING, judge(LOTS[1], PENDING, passes))
        journal.close()
        assert [json.loads(line)["number"] for line in lots.read_text().splitlines()] == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "holds a campaign with seed=0, and seed=1 was asked for; name another"),
        ({"count": 7}, f"holds a campaign with count={6 * SIZE}, and count=7 was asked for"),
        ({"candidates": ("native-local",)}, "holds a campaign with candidates=['native-local', "),
    ],
)
def test_the_folder_of_another_campaign_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_lots(tmp_path, 1)
    with pytest.raises(BadJournal) as caught:
        Journal.of(tmp_path, replace(OWN_REQUEST, **change), 2, WHOLE)
    assert str(caught.value).startswith(f"--resume={tmp_path}: {message}")
    with pytest.raises(BadJournal, match="holds a campaign with shard=1/1, and shard=1/2 was"):
        Journal.of(tmp_path, OWN_REQUEST, 2, Part(1, 2))
    with pytest.raises(BadJournal, match="holds a campaign with ranks=2, and ranks=4 was"):
        Journal.of(tmp_path, OWN_REQUEST, 4, WHOLE)


def refused(change: Callable[[Path], object], file: str, folder: Path) -> str:
    """Change one file of a journal; return why its folder is refused."""
    write_lots(folder, 2)
    change(folder / file)
    with pytest.raises(BadJournal) as caught:
        Journal.of(folder, OWN_REQUEST, 2, WHOLE)
    return str(caught.value).removeprefix(f"--resume={folder}: ")


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    def change_second_line(change: Callable[[dict[str, Any]], object], file: Path) -> None:
        first, second = file.read_text().splitlines()
        line = json.loads(second)
        change(line)
        file.write_text(f"{first}\n{json.dumps(line)}\n")

    for name, change in {
        "judged twice": lambda line: line["found"].update(cases=999),
        "no number": lambda line: line.update(number="1"),
        "not asked": lambda line: line["asked"][0].append(1),
        "no time": lambda line: line.update(elapsed=float("nan")),
    }.items():
        message = refused(partial(change_second_line, change), "lots.jsonl", tmp_path / name)
        assert (
            message == "lots.jsonl is damaged in line 2; remove it, and the campaign begins anew"
        )
    for number, text in enumerate(("", "[]", "no"), 2):
        folder = tmp_path / str(number)
        message = refused(lambda file, text=text: file.write_text(text), "campaign.json", folder)  # type: ignore[misc]
        assert message == "campaign.json is damaged; name another folder"


def test_two_processes_cannot_go_on_with_one_campaign(tmp_path: Path) -> None:
    first = Journal.of(tmp_path, OWN_REQUEST, 2, WHOLE)
    with pytest.raises(BadJournal, match="another process goes on with this campaign"):
        Journal.of(tmp_path, OWN_REQUEST, 2, WHOLE)
    first.close()
    Journal.of(tmp_path, OWN_REQUEST, 2, WHOLE)


def test_a_folder_is_refused_after_a_module_of_the_candidate_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("MINE = None")
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/helper.py").write_text("A = 1")
    request = replace(OWN_REQUEST, candidates=("mine.py:MINE",))
    for file in ("mine.py", "package/helper.py", "beside.py"):
        Journal.of(tmp_path / "kept", request, 2, WHOLE).close()
        Journal.of(tmp_path / "kept", request, 2, WHOLE).close()
        with Path(file).open("a") as changed:
            changed.write("\n")
        with pytest.raises(BadJournal, match="its code has changed since, so that what is known"):
            Journal.of(tmp_path / "kept", request, 2, WHOLE)
        (tmp_path / "kept" / "campaign.json").unlink()


# A rank that is given a case of the second lot waits until a file exists.
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
def test_a_killed_campaign_is_resumed_and_ends_as_if_it_had_run_through(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("waits.py").write_text(WAITS)
    lots = Path("kept/lots.jsonl")
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *COMMAND],
        env={**os.environ, **IMPORTS},
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
