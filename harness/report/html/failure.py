"""The page of one failure: its name, its maps of tokens, its gradients, and what ranks did."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.against import PLAIN, reference_name
from harness.case import Case, parse
from harness.report.html.collectives import diagram
from harness.report.html.gradients import GRADIENT, gradient_table
from harness.report.html.numbers import share
from harness.report.html.patterns import holdings, padded_on_the_left, pattern
from harness.report.html.render import render
from harness.report.html.tokens import MOST_CELLS, cell_texts, count_wrong, layout

VERDICTS = {
    "DIVERGED": "It computes something else than {reference}.",
    "KNOWN": "It computes something else than {reference}, and that is listed of it.",
    "FAULT": "It could not be judged.",
    "UNSUPPORTED": "It was not judged on this case.",
    "EQUAL": "It equals {reference} bit by bit.",
    "WITHIN": "It equals {reference} but for rounding.",
}
# Labels of the explanation that the page shows in other places.
SHOWN_ELSEWHERE = ("case", "columns", "looks", "cause", "replay", "ranks", "stack", "log")
MOST_ROWS = 16
# The columns before the continuation of an explanation's line.
INDENT = 10
LABEL = re.compile(r"  (\S.{0,6}?)\s+(\S.*)")


def failure_page(record: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the whole page; the facts, such as where it ran, are a table at its end."""
    case = parse(record["case"])
    # In older records, an empty field stands for plain training.
    reference = reference_name(case, record["against"] or PLAIN)
    lines = explanation_pairs(record["explanation"])
    looks = record["looks"]
    drawn = layout(case, record["picture"], record["findings"])
    return render(
        "failure.html",
        title=f"{record['verdict']} {record['candidate']}",
        record=record,
        verdict=record["verdict"],
        means=VERDICTS[record["verdict"]].format(reference=reference),
        name=looks[0]["name"] if looks else "",
        why=looks[0]["why"] if looks else record["reason"],
        explanation=[pair for pair in lines if pair[0] not in SHOWN_ELSEWHERE],
        case=case,
        layout=drawn,
        maps=list(_maps(record, case)),
        # Older records have none.
        columns=record.get("columns", []),
        stray=sorted({cell.stray for line in drawn.lines for cell in line.cells} - {""})
        if drawn
        else [],
        right_before=right_before(record),
        pattern=pattern(case, drawn, _tensor_maps(record)) if drawn else "",
        holdings=holdings(case, record["picture"]),
        gradients=gradient_table(record),
        diagram=diagram(record["fault"]["collectives"]) if record["fault"] else None,
        printed=_printed(record),
        larger=_larger(record["larger"]),
        rows=rows_of(case),
        fields=fields_of(case),
        facts=dict(_flatten(facts)),
    )


def right_before(record: Mapping[str, Any]) -> list[str]:
    """Return the keys before the first wrong one, without gradients."""
    keys: Mapping[str, Sequence[float]] = record["keys"]
    wrong = [number for number, (count, _, _) in enumerate(keys.values()) if count]
    before = list(keys)[: wrong[0]] if wrong else []
    return [key for key in before if not key.startswith(GRADIENT)]


def explanation_pairs(explanation: str) -> list[tuple[str, str]]:
    """Return the lines of an explanation as pairs of label and text, without the first line."""
    pairs: list[tuple[str, str]] = []
    for line in explanation.splitlines()[1:]:
        found = LABEL.fullmatch(line)
        if found:
            pairs.append((found[1], found[2]))
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}\n{line[INDENT:]}")
    return pairs


def _tensor_maps(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the maps of the record's picture: one for each tensor of tokens that is wrong."""
    maps: Sequence[Mapping[str, Any]] = record["picture"]["maps"] if record["picture"] else []
    return maps


def _maps(record: Mapping[str, Any], case: Case) -> Iterator[dict[str, Any]]:
    """Yield the view of each map; the first is open, and the page's room for cells is shared."""
    maps = _tensor_maps(record)
    numbers = {tensor["key"]: tensor for tensor in record["picture"]["numbers"]} if maps else {}
    room = MOST_CELLS
    for number, tensor_map in enumerate(maps):
        signs = tensor_map["signs"]
        if len(signs) != case.tokens:
            continue
        room -= case.tokens
        heads = tensor_map["heads"]
        is_drawn = room >= 0 and case.tokens <= MOST_CELLS
        has_heads = is_drawn and room >= case.tokens * len(heads)
        room -= case.tokens * len(heads) if has_heads else 0
        key = tensor_map["key"]
        is_inferred = key not in record["keys"]
        wrong, elements, used = record["keys"].get(key, [0, 0, 0.0])
        yield {
            "key": key,
            "signs": signs,
            "heads": heads if has_heads else [],
            "wrong_heads": [n for n, of_head in enumerate(heads) if set(of_head) - set("0-")],
            "count_heads": len(heads),
            "is_drawn": is_drawn,
            "is_open": number == 0,
            "wrong_tokens": count_wrong(signs),
            "elements": "The candidate does not show it; its gradients tell"
            if is_inferred
            else f"{wrong} of {elements} elements differ; {_describe_farthest(used)}",
            "texts": cell_texts(numbers.get(key)),
        }


def _describe_farthest(used: float) -> str:
    return f"the farthest by {share(used)}" if share(used) else "they must be exact"


def _printed(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the number, the log and the stack of each rank that has one of them."""
    fault = record["fault"] or {"logs": {}, "stacks": {}}
    logs = {**record["printed"], **fault["logs"]}
    return [
        (rank, logs.get(rank, ""), fault["stacks"].get(rank, ""))
        for rank in sorted({*logs, *fault["stacks"]}, key=lambda rank: (len(rank), rank))
        if logs.get(rank, "").strip() or fault["stacks"].get(rank, "").strip()
    ]


def _larger(larger: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the view of the case before it was shrunk, with its first map if there is room."""
    if larger is None:
        return None
    case = parse(larger["case"])
    shown = [each for each in _tensor_maps(larger) if len(each["signs"]) == case.tokens][:1]
    if case.tokens > MOST_CELLS // 2:
        shown = []
    return {
        "case": case,
        "layout": layout(case, larger["picture"]) if shown else None,
        "key": shown[0]["key"] if shown else "",
        "signs": shown[0]["signs"] if shown else "",
    }


def _flatten(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each fact that is not empty, also of those inside another."""
    for name, value in facts.items():
        if not isinstance(value, Mapping):
            yield from [(name, value)] if value else []
            continue
        for inner_name, inner in value.items():
            text = inner
            if isinstance(inner, Mapping):
                text = ", ".join(f"{key} {each}" for key, each in inner.items())
            yield from [(inner_name, text)] if text else []


def rows_of(case: Case) -> list[str]:
    """Return a description of each row, up to `MOST_ROWS`."""
    padded_left = padded_on_the_left(case)
    return [
        f"row {number}: {len(row)} tokens, {row.mask[1:].count('1')} targets"
        + (", padded on the left" if number in padded_left else "")
        for number, row in enumerate(case.rows[:MOST_ROWS])
    ]


def fields_of(case: Case) -> list[tuple[str, str]]:
    """Return name and value of each field in the case's line, without rows and ids."""
    words = (word.partition("=") for word in str(case).split()[1:])
    return [(name, value) for name, _, value in words if name not in ("rows", "ids")]
