"""What is known of a campaign that was begun before, and may have to be gone on with again.

A folder with two files: what the campaign is, and one line for each lot that is counted. A line
that was not written to its end is not known.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Self

import msgspec

from harness.campaign.code import digest_of_code
from harness.campaign.counts import Amount, Whole
from harness.campaign.pending import Asked
from harness.campaign.request import Request, origin
from harness.campaign.summary import Summary, versions
from harness.engine.lot import Lot, Part
from harness.storage import write_file
from harness.untrusted import BadInput, NotReadable, fitted, read_file, read_json

CAMPAIGN, LOTS = "campaign.json", "lots.jsonl"
MOST_BYTES = 1 << 32


class BadJournal(BadInput):
    """It is of another campaign, or none; the message names the folder."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A lot that is counted, who was asked for it, and what it came to."""

    number: Whole
    size: Whole
    part: tuple[Whole, Whole]
    asked: Asked
    # Seconds, at the end of it.
    elapsed: Amount
    found: dict[str, Any]


class Journal:
    """Nothing is known where there is no folder, and nothing is kept."""

    def __init__(self) -> None:
        self.known: dict[Lot, tuple[Asked, Summary]] = {}
        self._started, self._before = time.monotonic(), 0.0
        # The file that lots are written to.
        self._lots = -1

    @property
    def elapsed(self) -> float:
        """Seconds, with those of the runs before this one."""
        return round(self._before + time.monotonic() - self._started, 3)

    def told(self) -> str:
        """What is known, in words."""
        cases = sum(found.cases for _, found in self.known.values())
        return f"known before this run: {cases} cases in {len(self.known)} lots"

    @classmethod
    def of(cls, folder: Path, request: Request, ranks: int, part: Part) -> "Journal":
        """What is known of this campaign; the folder is made if there is none."""
        journal = cls()
        asked = {**origin(request, part), "ranks": ranks, "versions": versions()}
        campaign = json.loads(json.dumps({**asked, "code": digest_of_code(request.candidates)}))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            journal._lots = os.open(folder / LOTS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            journal._claim(folder)
            _require_same(folder, campaign)
            journal._read(folder)
        except OSError as error:
            journal.close()
            raise BadJournal(f"--resume={folder}: cannot be used: {error.strerror}") from None
        except BadJournal:
            journal.close()
            raise
        return journal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others go on with it."""
        if self._lots >= 0:
            os.close(self._lots)
        self._lots = -1

    def _claim(self, folder: Path) -> None:
        try:
            fcntl.flock(self._lots, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadJournal(
                f"--resume={folder}: another process goes on with this campaign"
            ) from None

    def _read(self, folder: Path) -> None:
        whole = 0
        for line in _content(folder / LOTS).splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            try:
                said = fitted(json.loads(line), _Line)
                found = Summary.from_record(said.found, partial=True)
                self.known[Lot(said.number, said.size, Part(*said.part))] = said.asked, found
                self._before = said.elapsed
            except (ValueError, LookupError, TypeError, AttributeError):
                raise BadJournal(
                    f"--resume={folder}: {LOTS} is damaged in line {len(self.known) + 1}; remove "
                    "it, and the campaign begins anew"
                ) from None
            whole += len(line)
        # What was not written to its end would spoil the next line.
        os.ftruncate(self._lots, whole)
        os.lseek(self._lots, 0, os.SEEK_END)

    def keep(self, lot: Lot, asked: Asked, found: Summary) -> None:
        """A lot that is counted; it is on the disk when this returns."""
        if self._lots < 0 or lot in self.known:
            return
        part = lot.part.number, lot.part.of
        said = _Line(lot.number, lot.size, part, asked, self.elapsed, found.record())
        data = memoryview(json.dumps(msgspec.to_builtins(said)).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._lots, data) :]
            os.fsync(self._lots)
        except OSError as error:
            raise BadJournal(f"--resume: {LOTS} cannot be written: {error.strerror}") from None


def _content(file: Path) -> bytes:
    try:
        return read_file(file, MOST_BYTES)
    except NotReadable as error:
        raise BadJournal(f"--resume={file.parent}: {file.name} {error}") from None


def _require_same(folder: Path, campaign: dict[str, Any]) -> None:
    """Make this the campaign of the folder if it has none yet."""
    file = folder / CAMPAIGN
    if not file.exists():
        write_file(file, json.dumps(campaign, indent=1).encode())
        return
    try:
        known = read_json(_content(file))
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        raise BadJournal(f"--resume={folder}: {CAMPAIGN} is damaged; name another folder")
    for name in known | campaign:
        one, other = known.get(name), campaign.get(name)
        if name == "code" and one != other:
            raise BadJournal(
                f"--resume={folder}: its code has changed since, so that what is known says "
                "nothing of it; name another folder"
            )
        if one != other:
            raise BadJournal(
                f"--resume={folder}: holds a campaign with {name}={one}, and {name}={other} was "
                "asked for; name another folder"
            )
