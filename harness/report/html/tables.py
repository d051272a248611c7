"""Pages that are tables: what became of the bank of mutants, and of the goldens."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from harness.against import AGAINST_ITSELF
from harness.compare import Change
from harness.report.html.render import render


def mutants_page(document: Mapping[str, Any]) -> str:
    """Every mutant and benign variant, those first that were not found, or flagged."""
    score = document["score"]
    hidden = [each for each in document["mutants"] if each["hidden"]]
    missed = [each for each in document["mutants"] if not each["verdict"] and not each["hidden"]]
    flagged = [each for each in document["benign"] if each["verdict"]]
    return render(
        "mutants.html",
        title=f"{score['killed']} of {score['mutants']} mutants killed",
        verdict="EQUAL" if document["passed"] else "DIVERGED",
        score=score,
        seconds=document["seconds"],
        missed=missed,
        hidden=hidden,
        flagged=flagged,
        mutants=document["mutants"],
        benign=document["benign"],
    )


def golden_page(document: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """How runs against the store came out."""
    if isinstance(document["goldens"], list):
        return recorded_page(document, links)
    return render(
        "goldens.html",
        title=f"{document['goldens']} goldens: {document['verdict']}",
        verdict=document["verdict"],
        document=document,
        against_itself=AGAINST_ITSELF,
        links=links,
    )


def recorded_page(document: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """What became of the goldens that a candidate recorded on a device."""
    changes = Counter(each["change"] for each in document["goldens"])
    told = ", ".join(f"{count} {change}" for change, count in changes.items())
    return render(
        "recorded.html",
        title=f"{len(document['goldens'])} goldens: {told}",
        verdict="DIVERGED" if any(Change(change).failed for change in changes) else "WITHIN",
        told=told,
        goldens=document["goldens"],
        links=links,
        placement=document["placement"],
    )
