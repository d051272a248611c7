"""From a document to its pages: what a command printed with --json, or the record of a bundle."""

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

# Fields by which the record of a failure is recognised.
FAILURE = {"case", "candidate", "verdict", "explanation", "picture", "keys", "looks"}
# Further fields of such a record that its page lists as facts.
FACTS = ("origin", "placement", "test", "again", "shrunk", "layers", "like", "bundle", "left_out")


class NotDrawn(BadInput):
    """No page can be made of a document; the message says of which and why."""


@dataclass(frozen=True, slots=True)
class Page:
    """The name and the content of a file."""

    name: str
    text: str


def pages_of(name: str, document: Any) -> list[Page]:
    """Return all pages of a document, the main one first; `name` is the document's in errors."""
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
        why = f"{type(error).__name__}: {error}"
        raise NotDrawn(f"document={name}: is damaged, no page can be made of it: {why}") from None


def _pages_of(document: Any) -> list[Page]:
    if not isinstance(document, dict):
        raise NotDrawn("is no document of the harness")
    if document.keys() >= FAILURE:
        return [_failure(document, {key: document[key] for key in FACTS if key in document})]
    if document.keys() >= {"campaign", "candidates", "situations"}:
        return _campaign(document)
    if document.keys() >= {"score", "mutants", "benign"}:
        return [Page("mutants.html", mutants_page(document))]
    if document.keys() >= {"goldens", "failures"}:
        failures = document["failures"]
        pages = [_failure(record, {"golden": name}) for name, record in failures.items()]
        links = dict(zip(failures, (page.name for page in pages), strict=True))
        return [Page("goldens.html", golden_page(document, links)), *pages]
    if document.keys() >= {"candidates", "releases"}:
        return [Page(name, text) for name, text in conformance_pages(document)]
    raise NotDrawn("is no document that pages are made of")


def _campaign(document: Mapping[str, Any]) -> list[Page]:
    facts = {"placement": document["placement"], "versions": document["versions"]}
    failures = [
        (failure, _failure(failure, {**facts, "bundle": failure.get("bundle", "")}))
        for tally in document["candidates"].values()
        for failure in tally["failures"]
    ]
    linked = [(failure, page.name) for failure, page in failures]
    # The name depends on the request, because several campaigns may go into one folder.
    request = repr((document["campaign"], document["shards"]))
    name = f"campaign-{hashlib.sha256(request.encode()).hexdigest()[:8]}.html"
    return [Page(name, campaign_page(document, linked)), *(page for _, page in failures)]


def _failure(record: Mapping[str, Any], facts: Mapping[str, Any]) -> Page:
    name = f"{record['id'][:10]}-{file_name(str(record['candidate']))}.html"
    return Page(name, failure_page(record, facts))
