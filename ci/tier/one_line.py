"""Condense the JSON document of a step into one line."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def read_document(file: Path) -> Document:
    """Return the document that a step printed; empty if there is none, or only a part of it."""
    try:
        document = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def summarize(document: Document) -> str:
    """Return the line of a document, whose kind is known by its keys; empty if none fits."""
    parts = next((read(document) for key, read in SUMMARIES.items() if key in document), ())
    return "; ".join(filter(None, [*parts, placement(document)]))


def placement(document: Document) -> str:
    """Return the device and the torch that computed it, if the document has them."""
    versions, place = document.get("versions", {}), document.get("placement", {})
    fields = {**place, "torch": place.get("torch") or versions.get("torch")}
    known = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    return ", ".join(f"{k} {' and '.join(map(str, v))}" for k, v in known.items() if any(v))


# Each of the following functions yields the parts of the line of one kind of document.


def campaign(document: Document) -> Iterator[str]:
    """Summarize the document of `check` or `merge`."""
    seconds = document["seconds"]
    rate = f", {document['cases'] / seconds:.1f} cases/s" if seconds else ""
    tallies = (
        f"{name} {counts(tally['verdicts'])}, used {tally['used']:.2g}"
        for name, tally in document["candidates"].items()
    )
    yield f"{document['cases']} cases{rate}: {'; '.join(tallies)}"
    yield f"ended by {document['ended']}" if document.get("ended") else ""
    yield from (f"{what} {took:.1f} s" for what, took in document.get("seconds of", {}).items())


def kill_table(document: Document) -> Iterator[str]:
    """Summarize the document of `mutants`."""
    score = document["score"]
    killed = "{killed} of {mutants} mutants killed, {named_right} named right"
    flagged = "{flagged} of {benign} benign variants flagged"
    parts = (killed if score["mutants"] else "", flagged if score["benign"] else "")
    yield ", ".join(filter(None, parts)).format(**score)


def recording(document: Document) -> Iterator[str]:
    """Summarize the document of `golden generate --out`."""
    left_out = "; ".join(f"{name} {why}" for name, why in document["left_out"].items())
    yield f"{len(document['recorded'])} goldens recorded{left_out and f', left out: {left_out}'}"


def goldens(document: Document) -> Iterator[str]:
    """Summarize the document of `golden verify`, of plain goldens or of recorded ones."""
    if isinstance(document["goldens"], list):
        changes = Counter(golden["change"] for golden in document["goldens"])
        yield f"{len(document['goldens'])} goldens, changes: {counts(changes)}"
        return
    runs = sum(document["verdicts"].values())
    rate = f", {runs / document['seconds']:.1f} runs/s" if document["seconds"] else ""
    yield f"{document['goldens']} goldens, {runs} runs{rate}: {counts(document['verdicts'])}"


def equipment(document: Document) -> Iterator[str]:
    """Summarize the document of `doctor`: what works, and why the rest does not."""
    for part in ("devices", "transports", "kernels"):
        facts = document[part].items()
        usable = ", ".join(name for name, each in facts if each["usable"])
        lacking = (f"{name} not: {each['why']}" for name, each in facts if not each["usable"])
        yield f"{part} {usable} ({'; '.join(lacking)})"


def machine(document: Document) -> Iterator[str]:
    """Summarize the document of `machine.py`."""
    facts = document["machine"]
    gpus = facts["gpus"]
    names = [" ".join((gpu["name"], gpu["memory.total"])) for gpu in gpus if isinstance(gpu, dict)]
    yield ", ".join(names) or str(gpus)
    yield f"{facts['cores']} cores, {facts['GB of memory']['MemTotal']:.0f} GB"
    look_up, torch = "seconds to look up the host's own name", "seconds to import torch"
    yield f"seconds to look up its own name: {facts[look_up]}, to import torch: {facts[torch]}"
    yield f"pidfd {facts['pidfd']}"


def attention(document: Document) -> Iterator[str]:
    """Summarize the document of `attention.py`: what each kernel runs, and what torch chooses."""
    tried = Counter(each["kernel"] for each in document["attention"])
    good = Counter(each["kernel"] for each in document["attention"] if not each["error"])
    yield from (f"{name} {good[name]} of {count}" for name, count in tried.items())
    own = [each for each in document["attention"] if "took" in each]
    for dtype in dict.fromkeys(each["dtype"] for each in own):
        of_dtype = [each for each in own if each["dtype"] == dtype]
        off = max((each["off"] for each in of_dtype if each["off"] is not None), default=0.0)
        taken = counts(Counter(each["took"] for each in of_dtype))
        yield f"in {dtype} torch takes {taken}, off by {off:.1g}"
    yield document["broken"]


def collectives(document: Document) -> Iterator[str]:
    """Summarize the document of `collectives.py`: which work, and why the others do not."""
    errors = {
        name: next(filter(None, by_dtype.values()), "")
        for name, by_dtype in document["collectives"].items()
    }
    yield f"work: {', '.join(name for name, error in errors.items() if not error)}"
    yield from (f"{name} not: {error}" for name, error in errors.items() if error)


def lengths(document: Document) -> Iterator[str]:
    """Summarize the document of `bench.py --length`."""
    for size in document["sizes"]:
        step = f"{size['tokens']:,} tokens {size['verdict']}, {size['seconds']:.0f} s"
        rank, controller = size["largest rank"], size["controller"]
        yield f"{step}, {rank:,.0f} MB a rank, {controller:,.0f} MB in the controller"


def rates(document: Document) -> Iterator[str]:
    """Summarize the document of `bench.py --rate`."""
    for size, figures in document.items():
        if "harness, cases/s" in figures:
            bare = figures["bare loop on the same ranks, cases/s"]
            yield f"{size}: {figures['harness, cases/s']:.1f} cases/s, bare loop {bare:.1f}"


def counts(numbers: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(numbers.items()) if count)


# By a key that only this kind of document has.
SUMMARIES = {
    "candidates": campaign,
    "score": kill_table,
    "recorded": recording,
    "goldens": goldens,
    "kernels": equipment,
    "machine": machine,
    "attention": attention,
    "collectives": collectives,
    "sizes": lengths,
    "sp 2": rates,
}
