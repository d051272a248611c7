"""The documents of several shards as one. Needs no torch."""

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

# A campaign of millions of cases has less.
MOST_BYTES = 1 << 28


class BadDocument(BadInput):
    """A file that is no part of this campaign; the message says which and why."""


def read_document(name: str) -> Summary:
    """What `check --json` or `merge --json` wrote."""
    try:
        # A user may well name a link.
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
    """The sum of the shards of one campaign, each with the name of its document."""
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
    _refuse_other_cases(documents)
    whole = reduce(add, (summary for _, summary in documents))
    sizes = {str(lot.number): lot.size for lot in WHOLE.lots(first.request.count)}
    for number, each in whole.begun.items():
        if not each.is_of(sizes[number]):
            raise BadDocument(
                f"document={first_name}: the cases of lot {number} that were judged in these "
                f"{len(documents)} documents are not those of the campaign; name the document of "
                "each shard once, as check --json wrote it"
            )
    return replace(whole, missing=tuple(sorted(set(range(1, first.of + 1)) - holders.keys())))


def _refuse_other_cases(documents: Sequence[tuple[str, Summary]]) -> None:
    """Where the same seed draws other cases, nobody knows which were judged."""
    drawn: dict[str, tuple[str, str]] = {}
    for name, summary in documents:
        for number, each in summary.begun.items():
            digest, where = drawn.setdefault(number, (each.drawn, name))
            if digest != each.drawn:
                raise BadDocument(
                    f"document={name}: lot {number} has other cases than in {where}; merge shards "
                    "that were drawn by the same versions"
                )


def _refuse_other_campaign(name: str, summary: Summary, first_name: str, first: Summary) -> None:
    mine, others = _identity(summary), _identity(first)
    for field in others | mine:
        one, other = mine.get(field), others.get(field)
        if one != other:
            raise BadDocument(
                f"document={name}: {field}={_text(one)}, but {first_name} has "
                f"{field}={_text(other)}; merge the shards of one campaign"
            )


def _identity(summary: Summary) -> dict[str, Any]:
    """What all shards of a campaign have in common."""
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
