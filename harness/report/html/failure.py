"""One failure as a page."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.against import PLAIN, reference_name
from harness.case import Case, parse
from harness.report.html.collectives import diagram
from harness.report.html.gradients import GRADIENT, table_of_gradients
from harness.report.html.numbers import share
from harness.report.html.patterns import holdings, padded_on_the_left, pattern
from harness.report.html.render import render
from harness.report.html.tokens import MOST_CELLS, counted, layout, written

VERDICTS = {
    "DIVERGED": "It computes something else than {reference}.",
    "KNOWN": "It computes something else than {reference}, and that is listed of it.",
    "FAULT": "It could not be judged.",
    "UNSUPPORTED": "It was not judged on this case.",
    "EQUAL": "It equals {reference} bit by bit.",
    "WITHIN": "It equals {reference} but for rounding.",
}
IN_PLACES_OF_THEIR_OWN = ("case", "looks", "cause", "replay", "ranks", "stack", "log")
MOST_ROWS = 16
# Columns before a text that goes on on the next line.
INDENT = 10
LABEL = re.compile(r"  (\S.{0,6}?)\s+(\S.*)")


def failure_page(record: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The whole page; what the document says besides of where it ran comes last."""
    case = parse(record["case"])
    # Records that are older say nothing where it was plain training.
    reference = reference_name(case, record["against"] or PLAIN)
    told = told_in_pairs(record["explanation"])
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
        told=[pair for pair in told if pair[0] not in IN_PLACES_OF_THEIR_OWN],
        case=case,
        layout=drawn,
        maps=list(_maps(record, case)),
        stray=sorted({cell.stray for line in drawn.lines for cell in line.cells} - {""})
        if drawn
        else [],
        right_before=right_before(record),
        pattern=pattern(case, drawn, _tensors(record)) if drawn else "",
        holdings=holdings(case, record["picture"]),
        gradients=table_of_gradients(record),
        diagram=diagram(record["fault"]["collectives"]) if record["fault"] else None,
        printed=_printed(record),
        larger=_larger(record["larger"]),
        rows=rows_of(case),
        fields=fields_of(case),
        other=dict(_facts(other)),
    )


def right_before(record: Mapping[str, Any]) -> list[str]:
    """The tensors that were computed before the first that is wrong, and are right."""
    keys: Mapping[str, Sequence[float]] = record["keys"]
    wrong = [number for number, (count, _, _) in enumerate(keys.values()) if count]
    first = list(keys)[: wrong[0]] if wrong else []
    return [key for key in first if not key.startswith(GRADIENT)]


def told_in_pairs(explanation: str) -> list[tuple[str, str]]:
    """What the text for terminals says: a word, and what is said under it."""
    pairs: list[tuple[str, str]] = []
    for line in explanation.splitlines()[1:]:
        found = LABEL.fullmatch(line)
        if found:
            pairs.append((found[1], found[2]))
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}\n{line[INDENT:]}")
    return pairs


def _tensors(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Maps of tensors that are wrong somewhere, as signs."""
    maps: Sequence[Mapping[str, Any]] = record["picture"]["maps"] if record["picture"] else []
    return maps


def _maps(record: Mapping[str, Any], case: Case) -> Iterator[dict[str, Any]]:
    """Every tensor of tokens that is wrong somewhere; the first is open."""
    maps = _tensors(record)
    numbers = {each["key"]: each for each in record["picture"]["numbers"]} if maps else {}
    room = MOST_CELLS
    for number, each in enumerate(maps):
        if len(each["signs"]) != case.tokens:
            continue
        room -= case.tokens
        heads = each["heads"]
        drawn = room >= 0 and case.tokens <= MOST_CELLS
        with_heads = drawn and room >= case.tokens * len(heads)
        room -= case.tokens * len(heads) if with_heads else 0
        inferred = each["key"] not in record["keys"]
        wrong, elements, used = record["keys"].get(each["key"], [0, 0, 0.0])
        yield {
            "key": each["key"],
            "signs": each["signs"],
            "heads": heads if with_heads else [],
            "wrong_heads": [n for n, signs in enumerate(heads) if set(signs) - set("0-")],
            "count_heads": len(heads),
            "drawn": drawn,
            "open": number == 0,
            "counted": counted(each["signs"]),
            "elements": "The candidate does not show it; its gradients tell"
            if inferred
            else f"{wrong} of {elements} elements differ; {_farthest(used)}",
            "written": written(numbers.get(each["key"])),
        }


def _farthest(used: float) -> str:
    return f"the farthest by {share(used)}" if share(used) else "they must be exact"


def _printed(record: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """By rank, what it printed and where it stood."""
    fault = record["fault"] or {"logs": {}, "stacks": {}}
    logs = {**record["printed"], **fault["logs"]}
    return [
        (rank, logs.get(rank, ""), fault["stacks"].get(rank, ""))
        for rank in sorted({*logs, *fault["stacks"]}, key=lambda rank: (len(rank), rank))
        if logs.get(rank, "").strip() or fault["stacks"].get(rank, "").strip()
    ]


def _larger(larger: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The case before it was shrunk, with the map of the first tensor that is wrong in it."""
    if larger is None:
        return None
    case = parse(larger["case"])
    shown = [each for each in _tensors(larger) if len(each["signs"]) == case.tokens][:1]
    if case.tokens > MOST_CELLS // 2:
        shown = []
    return {
        "case": case,
        "layout": layout(case, larger["picture"]) if shown else None,
        "key": shown[0]["key"] if shown else "",
        "signs": shown[0]["signs"] if shown else "",
    }


def _facts(other: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What the document says besides, a line each."""
    for name, value in other.items():
        if not isinstance(value, Mapping):
            yield from [(name, value)] if value else []
            continue
        for inner, found in value.items():
            is_list = isinstance(found, Mapping)
            text = ", ".join(f"{key} {each}" for key, each in found.items()) if is_list else found
            yield from [(inner, text)] if text else []


def rows_of(case: Case) -> list[str]:
    """What each row is, as far as it is worth telling."""
    lefts = padded_on_the_left(case)
    return [
        f"row {number}: {len(row)} tokens, {row.mask[1:].count('1')} targets"
        + (", padded on the left" if number in lefts else "")
        for number, row in enumerate(case.rows[:MOST_ROWS])
    ]


def fields_of(case: Case) -> list[tuple[str, str]]:
    """What a case says of itself, but for its rows."""
    words = (word.partition("=") for word in str(case).split()[1:])
    return [(name, value) for name, _, value in words if name not in ("rows", "ids")]
