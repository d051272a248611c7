"""Which pages a document becomes: what a command printed with --json, or a bundle's record."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.names import file_name
from harness.report.html.campaign import campaign_page
from harness.report.html.conformance import conformance_pages
from harness.report.html.failure import failure_page
from harness.report.html.render import Unrenderable
from harness.report.html.tables import golden_page, mutants_page
from harness.untrusted import BadInput

# What a record of a failure cannot be without.
FAILURE = {"case", "candidate", "verdict", "explanation", "picture", "keys", "looks"}
BESIDE = ("origin", "placement", "test", "again", "shrunk", "layers", "like", "bundle", "left_out")


class NotDrawn(BadInput):
    """A document that no page can be made of; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Page:
    """A file of a report."""

    name: str
    text: str


def pages_of(name: str, document: Any) -> list[Page]:
    """All pages of one document, the one to begin with first; `name` is for who is told of it."""
    try:
        return _pages_of(document)
    except NotDrawn as error:
        raise NotDrawn(f"document={name}: {error}") from None
    except (
        ArithmeticError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        Unrenderable,
    ) as error:
        said = f"{type(error).__name__}: {error}"
        raise NotDrawn(f"document={name}: is damaged, no page can be made of it: {said}") from None


def _pages_of(document: Any) -> list[Page]:
    if not isinstance(document, dict):
        raise NotDrawn("is no document of the harness")
    if document.keys() >= FAILURE:
        return [_failure(document, {k: document[k] for k in BESIDE if k in document})]
    if document.keys() >= {"campaign", "candidates", "situations"}:
        return _campaign(document)
    if document.keys() >= {"score", "mutants", "benign"}:
        return [Page("mutants.html", mutants_page(document))]
    if document.keys() >= {"goldens", "failures"}:
        found = [_failure(each, {"golden": name}) for name, each in document["failures"].items()]
        links = dict(zip(document["failures"], (page.name for page in found), strict=True))
        return [Page("goldens.html", golden_page(document, links)), *found]
    if document.keys() >= {"candidates", "releases"}:
        return [Page(*each) for each in conformance_pages(document)]
    raise NotDrawn("is no document that pages are made of")


def _campaign(document: Mapping[str, Any]) -> list[Page]:
    beside = {"placement": document["placement"], "versions": document["versions"]}
    failures = [
        (failure, _failure(failure, {**beside, "bundle": failure.get("bundle", "")}))
        for tally in document["candidates"].values()
        for failure in tally["failures"]
    ]
    linked = [(failure, page.name) for failure, page in failures]
    # Several campaigns may go into one folder.
    asked = repr((document["campaign"], document["shards"]))
    name = f"campaign-{hashlib.sha256(asked.encode()).hexdigest()[:8]}.html"
    return [Page(name, campaign_page(document, linked)), *(page for _, page in failures)]


def _failure(record: Mapping[str, Any], beside: Mapping[str, Any]) -> Page:
    name = f"{record['id'][:10]}-{file_name(str(record['candidate']))}.html"
    return Page(name, failure_page(record, beside))
