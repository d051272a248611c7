"""Pages that are tables: what became of the bank of mutants, and of the goldens."""

from collections.abc import Mapping
from typing import Any

from harness.report.html.render import render


def mutants_page(document: Mapping[str, Any]) -> str:
    """Every mutant and benign variant, those first that were not found, or flagged."""
    score = document["score"]
    missed = [each for each in document["mutants"] if not each["verdict"]]
    flagged = [each for each in document["benign"] if each["verdict"]]
    return render(
        "mutants.html",
        title=f"{score['killed']} of {score['mutants']} mutants killed",
        verdict="EQUAL" if document["passed"] else "DIVERGED",
        score=score,
        seconds=document["seconds"],
        missed=missed,
        flagged=flagged,
        mutants=document["mutants"],
        benign=document["benign"],
    )


def golden_page(document: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """How runs against the store came out."""
    return render(
        "goldens.html",
        title=f"{document['goldens']} goldens: {document['verdict']}",
        verdict=document["verdict"],
        document=document,
        links=links,
    )
