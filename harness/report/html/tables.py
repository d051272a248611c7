"""Pages that are tables: the results of `mutants` and of `golden verify`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.against import compared_with
from harness.compare import Change
from harness.report.html.render import render


def mutants_page(document: Mapping[str, Any]) -> str:
    """Return the page of all mutants and benign variants, with those first that came out wrong."""
    score = document["score"]
    mutants, benign = document["mutants"], document["benign"]
    hidden = [trial for trial in mutants if trial["hidden"]]
    missed = [trial for trial in mutants if not trial["verdict"] and not trial["hidden"]]
    flagged = [trial for trial in benign if trial["verdict"]]
    return render(
        "mutants.html",
        title=f"{score['killed']} of {score['mutants']} mutants killed",
        verdict="EQUAL" if document["passed"] else "DIVERGED",
        score=score,
        seconds=document["seconds"],
        missed=missed,
        hidden=hidden,
        flagged=flagged,
        mutants=mutants,
        benign=benign,
    )


def golden_page(document: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """Return the page of `golden verify`, with links to the pages of failures."""
    if isinstance(document["goldens"], list):
        return recorded_page(document, links)
    return render(
        "goldens.html",
        title=f"{document['goldens']} goldens: {document['verdict']}",
        verdict=document["verdict"],
        document=document,
        compared_with=compared_with,
        links=links,
    )


def recorded_page(document: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """Return the page of `golden verify` for goldens that were recorded on a device."""
    changes = Counter(golden["change"] for golden in document["goldens"])
    counts = ", ".join(f"{count} {change}" for change, count in changes.items())
    return render(
        "recorded.html",
        title=f"{len(document['goldens'])} goldens: {counts}",
        verdict="DIVERGED" if any(Change(change).failed for change in changes) else "WITHIN",
        counts=counts,
        goldens=document["goldens"],
        links=links,
        placement=document["placement"],
    )
