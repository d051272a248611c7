"""Read the documents of shards, and add them up to one. Needs no torch."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from harness.campaign.summary import FORMAT, Summary
from harness.engine.lot import WHOLE
from harness.untrusted import BadInput, NotReadable, read_file, read_json

# The document of a campaign of millions of cases is smaller.
MOST_BYTES = 1 << 28


class BadDocument(BadInput):
    """A file is no document of this campaign; the message names the file and the reason."""


def read_document(name: str) -> Summary:
    """Read a document that `check --json` or `merge --json` wrote; raise `BadDocument`."""
    try:
        # `read_file` refuses links, and a user may name one.
        document = read_json(read_file(Path(name).resolve(), MOST_BYTES))
    except OSError as error:
        raise BadDocument(f"document={name}: cannot be read: {error.strerror}") from None
    except NotReadable as error:
        raise BadDocument(f"document={name}: {error}") from None
    except (ValueError, RecursionError):
        raise BadDocument(f"document={name}: is not JSON") from None
    if not isinstance(document, dict) or "format" not in document:
        raise BadDocument(f"document={name}: was not written by check --json")
    if document["format"] != FORMAT:
        raise BadDocument(
            f"document={name}: has format {document['format']!r}; this version reads {FORMAT}"
        )
    try:
        return Summary.from_record(document)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadDocument(
            f"document={name}: is damaged; check --json did not write it like this"
        ) from None


def merge(documents: Sequence[tuple[str, Summary]]) -> Summary:
    """Add up the shards of one campaign, each given with the name of its document.

    Raise `BadDocument` if they are not of one campaign, or if a shard is there twice.
    """
    first_name, first = documents[0]
    holders: dict[int, str] = {}
    for name, summary in documents:
        _refuse_other_campaign(name, summary, first_name, first)
        for shard in summary.shards:
            if shard in holders:
                raise BadDocument(
                    f"document={name}: holds shard {shard}/{summary.of}, and so does "
                    f"{holders[shard]}; count each shard once"
                )
            holders[shard] = name
    _refuse_other_lots(documents)
    whole = reduce(add, (summary for _, summary in documents))
    sizes = {str(lot.number): lot.size for lot in WHOLE.lots(first.request.count)}
    for number, cases in whole.begun.items():
        if not cases.is_possible(sizes[number]):
            raise BadDocument(
                f"document={first_name}: the cases of lot {number} that were judged in these "
                f"{len(documents)} documents are not those of the campaign; name the document of "
                "each shard once, as check --json wrote it"
            )
    return replace(whole, missing=tuple(sorted(set(range(1, first.of + 1)) - holders.keys())))


def _refuse_other_lots(documents: Sequence[tuple[str, Summary]]) -> None:
    """Raise `BadDocument` if two documents have drawn other cases for one lot.

    Together they might then leave out cases, or have judged some of them twice.
    """
    drawn: dict[str, tuple[str, str]] = {}
    for name, summary in documents:
        for number, cases in summary.begun.items():
            digest, other_name = drawn.setdefault(number, (cases.drawn, name))
            if digest != cases.drawn:
                raise BadDocument(
                    f"document={name}: lot {number} has other cases than in {other_name}; merge "
                    "shards that were drawn by the same versions"
                )


def _refuse_other_campaign(name: str, summary: Summary, first_name: str, first: Summary) -> None:
    identity, first_identity = _identity(summary), _identity(first)
    for field in first_identity | identity:
        value, first_value = identity.get(field), first_identity.get(field)
        if value != first_value:
            raise BadDocument(
                f"document={name}: {field}={_text(value)}, but {first_name} has "
                f"{field}={_text(first_value)}; merge the shards of one campaign"
            )


def _identity(summary: Summary) -> dict[str, Any]:
    """Return what all shards of a campaign have in common."""
    return {
        **asdict(summary.request),
        "ranks": summary.ranks,
        "shards": summary.of,
        **summary.versions,
        "unseen": summary.unseen,
        "situations": tuple(summary.situations),
    }


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
