"""The page of a campaign: failures, verdicts, situations, errors, and seconds per case."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.against import compared_with
from harness.case import parse
from harness.report.html.heat import heat
from harness.report.html.render import render
from harness.report.html.tokens import MOST_WITH_TEXT, layout
from harness.verdict import Verdict

OUTCOMES = tuple(verdict.name for verdict in Verdict)
# The height of the tallest bar of a histogram, and the width of its columns.
BAR, COLUMN = 60, 56


def campaign_page(
    document: Mapping[str, Any], failures: Sequence[tuple[Mapping[str, Any], str]]
) -> str:
    """Return the whole page; each failure comes with the file name of its own page."""
    candidates = document["candidates"]
    verdicts = {name: tally["verdicts"] for name, tally in candidates.items()}
    return render(
        "campaign.html",
        title=f"{document['verdict']}: {document['cases']} cases, {', '.join(candidates)}",
        verdict=document["verdict"],
        document=document,
        compared_with=compared_with,
        outcomes=[name for name in OUTCOMES if any(name in seen for seen in verdicts.values())],
        candidates=candidates,
        cards=[_card(record, name) for record, name in failures],
        heat=heat(
            {name: tally["situations"] for name, tally in candidates.items()},
            document["situations"],
        ),
        histograms=[
            (name, dtype, _bars(document["buckets"], histogram["counts"]), histogram["most"])
            for name, tally in candidates.items()
            for dtype, histogram in sorted(tally["histogram"].items())
        ],
        paces=_paces(candidates),
        bar=BAR,
        column=COLUMN,
    )


def _card(record: Mapping[str, Any], page: str) -> dict[str, Any]:
    """Return the view of a failure in short, with its first map if the case is small."""
    case, looks = parse(record["case"]), record["looks"]
    maps = record["picture"]["maps"] if record["picture"] else []
    has_map = bool(maps) and len(maps[0]["signs"]) == case.tokens <= MOST_WITH_TEXT
    return {
        "page": page,
        "record": record,
        "name": looks[0]["name"] if looks else "",
        "why": looks[0]["why"] if looks else record["reason"],
        "key": maps[0]["key"] if has_map else "",
        "signs": maps[0]["signs"] if has_map else "",
        "layout": layout(case, record["picture"]) if has_map else None,
    }


def _bars(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int, float]]:
    """Return the bound, the count and the height of each bar of a histogram."""
    most = max(counts, default=0) or 1
    pairs = zip(bounds, counts, strict=True)
    return [(f"≤ {bound:g}", count, BAR * count / most) for bound, count in pairs]


def _paces(candidates: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return a row for each size: how long its cases took with each candidate."""
    sizes = sorted({int(size) for tally in candidates.values() for size in tally["pace"]})
    rows = []
    for size in sizes:
        cells = []
        for tally in candidates.values():
            pace = tally["pace"].get(str(size))
            cells.append(
                f"{1000 * pace['seconds'] / pace['cases']:.0f} ms, at most "
                f"{1000 * pace['most']:.0f} ms ({pace['cases']})"
                if pace
                else "none"
            )
        rows.append((f"up to {size} tokens", cells))
    return rows
