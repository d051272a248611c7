"""A failure as a folder that can be carried to another machine."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.case import Case, InvalidCase, parse
from harness.compare import Comparison
from harness.report.record import comparison_record
from harness.report.text import explain

DEFAULT_FOLDER = Path(".harness/failures")


class BadBundle(ValueError):
    """A folder that holds no failure; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is needed to see a failure again."""

    case: Case
    candidate: str
    verdict: str
    # What the same ranks must have run before.
    before: tuple[Case, ...]


def write_bundle(comparison: Comparison, folder: Path | None = None) -> Path:
    """Write the folder; it is there whole or not at all."""
    if folder is None:
        writable = os.access(Path.cwd(), os.W_OK)
        folder = DEFAULT_FOLDER if writable else Path(tempfile.gettempdir()) / "harness-failures"
    candidate = comparison.candidate.rpartition("/")[2].replace(":", "-")
    place = folder / f"{comparison.case.id}-{candidate}"
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    record = json.dumps(comparison_record(comparison), indent=1, allow_nan=True)
    (draft / "failure.json").write_text(record + "\n")
    (draft / "explanation.txt").write_text(explain(comparison) + "\n")
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=folder))
    if place.exists():
        place.rename(old / "failure")
    draft.rename(place)
    shutil.rmtree(old)
    return place


def read_bundle(place: Path) -> Bundle:
    """The failure in a folder."""
    file = place / "failure.json" if place.is_dir() else place
    try:
        record = json.loads(file.read_text())
        return Bundle(
            parse(record["case"]),
            str(record["candidate"]),
            str(record["verdict"]),
            tuple(parse(line) for line in record["before"]),
        )
    except OSError as error:
        raise BadBundle(f"bundle={place}: {file.name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        what = str(error) if isinstance(error, InvalidCase) else "is not a failure record"
        raise BadBundle(f"bundle={place}: {file.name}: {what}") from None
