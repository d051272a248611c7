"""The journal of a campaign: a folder from which a run that ended early goes on.

It has two files: what the campaign is, and a line for each lot that is counted. A last line that
was not written to its end is ignored, and its lot is judged again.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, Self

import msgspec

from harness.campaign.code import digest_of_code
from harness.campaign.counts import Amount, Count
from harness.campaign.pending import PendingCandidates
from harness.campaign.request import Request, campaign_record
from harness.campaign.summary import Summary, versions
from harness.engine.lot import Lot, Part
from harness.storage import write_file
from harness.untrusted import BadInput, NotReadable, fitted, read_file, read_json

CAMPAIGN, LOTS = "campaign.json", "lots.jsonl"
MOST_BYTES = 1 << 32


class BadJournal(BadInput):
    """The folder has another campaign, or is damaged; the message names it."""


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A lot that is counted, the candidates that it was judged for, and its summary."""

    number: Count
    size: Count
    part: tuple[Count, Count]
    asked: PendingCandidates
    # Seconds that the campaign had taken when the lot was counted.
    elapsed: Amount
    found: dict[str, Any]


class Journal:
    """Keeps the summaries of counted lots in a folder; without a folder it keeps nothing."""

    def __init__(self) -> None:
        self.known: dict[Lot, tuple[PendingCandidates, Summary]] = {}
        self._started, self._earlier_seconds = time.monotonic(), 0.0
        # The descriptor of the file of lots; negative if there is none.
        self._lots = -1

    @property
    def elapsed(self) -> float:
        """The seconds that the campaign has taken, with those of earlier runs."""
        return round(self._earlier_seconds + time.monotonic() - self._started, 3)

    def line(self) -> str:
        """Return a line about what is known."""
        cases = sum(summary.cases for _, summary in self.known.values())
        return f"known before this run: {cases} cases in {len(self.known)} lots"

    @classmethod
    def of(cls, folder: Path, request: Request, ranks: int, part: Part) -> "Journal":
        """Open the journal of this campaign in a folder, which is made if it does not exist.

        Raise `BadJournal` if the folder is damaged, in use, or has another campaign.
        """
        journal = cls()
        asked = {**campaign_record(request, part), "ranks": ranks, "versions": versions()}
        campaign = json.loads(json.dumps({**asked, "code": digest_of_code(request)}))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            journal._lots = os.open(folder / LOTS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            journal._lock(folder)
            _require_same_campaign(folder, campaign)
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
        """Close the file of lots, and with it the lock."""
        if self._lots >= 0:
            os.close(self._lots)
        self._lots = -1

    def _lock(self, folder: Path) -> None:
        try:
            fcntl.flock(self._lots, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadJournal(
                f"--resume={folder}: another process goes on with this campaign"
            ) from None

    def _read(self, folder: Path) -> None:
        """Read the lots that are known; cut off a line that was not written to its end."""
        whole = 0
        for text in _content(folder / LOTS).splitlines(keepends=True):
            if not text.endswith(b"\n"):
                break
            try:
                line = fitted(json.loads(text), _Line)
                summary = Summary.from_record(line.found, partial=True)
                self.known[Lot(line.number, line.size, Part(*line.part))] = line.asked, summary
                self._earlier_seconds = line.elapsed
            except (ValueError, LookupError, TypeError, AttributeError):
                raise BadJournal(
                    f"--resume={folder}: {LOTS} is damaged in line {len(self.known) + 1}; remove "
                    "it, and the campaign begins anew"
                ) from None
            whole += len(text)
        # The next line would be appended to the unfinished one.
        os.ftruncate(self._lots, whole)
        os.lseek(self._lots, 0, os.SEEK_END)

    def write(self, lot: Lot, pending: PendingCandidates, summary: Summary) -> None:
        """Append a counted lot, unless it is known; it is on the disk when this returns."""
        if self._lots < 0 or lot in self.known:
            return
        part = lot.part.number, lot.part.of
        line = _Line(lot.number, lot.size, part, pending, self.elapsed, summary.record())
        data = memoryview(json.dumps(msgspec.to_builtins(line)).encode() + b"\n")
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


def _require_same_campaign(folder: Path, campaign: dict[str, Any]) -> None:
    """Raise `BadJournal` if the folder has another campaign; write this one if it has none."""
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
        known_value, value = known.get(name), campaign.get(name)
        if name == "code" and known_value != value:
            raise BadJournal(
                f"--resume={folder}: its code has changed since, so that what is known says "
                "nothing of it; name another folder"
            )
        if known_value != value:
            raise BadJournal(
                f"--resume={folder}: holds a campaign with {name}={known_value}, and "
                f"{name}={value} was asked for; name another folder"
            )
