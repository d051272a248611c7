"""What a step's document says, in one line."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def document(file: Path) -> Document:
    """What a step printed for programs; nothing where it did not come so far."""
    try:
        said = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def in_short(document: Document) -> str:
    """By what it has; nothing where it is of none of these kinds."""
    told = next((tell(document) for key, tell in TELLERS.items() if key in document), ())
    return "; ".join(filter(None, [*told, placed(document)]))


def placed(document: Document) -> str:
    """Where it was computed and by which torch, if it says so."""
    versions, place = document.get("versions", {}), document.get("placement", {})
    where = {**place, "torch": place.get("torch") or versions.get("torch")}
    known = {name: value if isinstance(value, list) else [value] for name, value in where.items()}
    return ", ".join(f"{k} {' and '.join(map(str, v))}" for k, v in known.items() if any(v))


def campaign(document: Document) -> Iterator[str]:
    """What `check` or `merge` found."""
    seconds = document["seconds"]
    rate = f", {document['cases'] / seconds:.1f} cases/s" if seconds else ""
    each = (
        f"{name} {counts(tally['verdicts'])}, used {tally['used']:.2g}"
        for name, tally in document["candidates"].items()
    )
    yield f"{document['cases']} cases{rate}: {'; '.join(each)}"
    yield f"ended by {document['ended']}" if document.get("ended") else ""
    yield from (f"{what} {took:.1f} s" for what, took in document.get("seconds of", {}).items())


def power(document: Document) -> Iterator[str]:
    """What `mutants` found."""
    score = document["score"]
    killed = "{killed} of {mutants} mutants killed, {named_right} named right"
    flagged = "{flagged} of {benign} benign variants flagged"
    parts = (killed if score["mutants"] else "", flagged if score["benign"] else "")
    yield ", ".join(filter(None, parts)).format(**score)


def recording(document: Document) -> Iterator[str]:
    """What `golden generate --out` wrote."""
    left_out = "; ".join(f"{name} {why}" for name, why in document["left_out"].items())
    yield f"{len(document['recorded'])} goldens recorded{left_out and f', left out: {left_out}'}"


def goldens(document: Document) -> Iterator[str]:
    """What `golden verify` found, of a store of the oracle's or of a recording."""
    if isinstance(document["goldens"], list):
        changes = Counter(golden["change"] for golden in document["goldens"])
        yield f"{len(document['goldens'])} goldens, changes: {counts(changes)}"
        return
    runs = sum(document["verdicts"].values())
    rate = f", {runs / document['seconds']:.1f} runs/s" if document["seconds"] else ""
    yield f"{document['goldens']} goldens, {runs} runs{rate}: {counts(document['verdicts'])}"


def equipment(document: Document) -> Iterator[str]:
    """What `doctor` found, and why not the rest."""
    for part in ("devices", "transports", "kernels"):
        found = document[part].items()
        there = ", ".join(name for name, each in found if each["usable"])
        lacking = (f"{name} not: {each['why']}" for name, each in found if not each["usable"])
        yield f"{part} {there} ({'; '.join(lacking)})"


def machine(document: Document) -> Iterator[str]:
    """What there is, and what is slow."""
    told = document["machine"]
    gpus = told["gpus"]
    seen = [" ".join((gpu["name"], gpu["memory.total"])) for gpu in gpus if isinstance(gpu, dict)]
    yield ", ".join(seen) or str(gpus)
    yield f"{told['cores']} cores, {told['GB of memory']['MemTotal']:.0f} GB"
    looked_up, imported = "seconds to look up the host's own name", "seconds to import torch"
    yield f"seconds to look up its own name: {told[looked_up]}, to import torch: {told[imported]}"
    yield f"pidfd {told['pidfd']}"


def attention(document: Document) -> Iterator[str]:
    """How much each kernel can do; by dtype what torch takes by itself, and how far it is off."""
    tried = Counter(each["kernel"] for each in document["attention"])
    good = Counter(each["kernel"] for each in document["attention"] if not each["error"])
    yield from (f"{name} {good[name]} of {count}" for name, count in tried.items())
    own = [each for each in document["attention"] if "took" in each]
    for dtype in dict.fromkeys(each["dtype"] for each in own):
        its = [each for each in own if each["dtype"] == dtype]
        off = max((each["off"] for each in its if each["off"] is not None), default=0.0)
        taken = counts(Counter(each["took"] for each in its))
        yield f"in {dtype} torch takes {taken}, off by {off:.1g}"
    yield document["broken"]


def collectives(document: Document) -> Iterator[str]:
    """Which work in every dtype, and why the others do not."""
    told = document["collectives"].items()
    bad = {name: next(filter(None, each.values()), "") for name, each in told}
    yield f"work: {', '.join(name for name, why in bad.items() if not why)}"
    yield from (f"{name} not: {why}" for name, why in bad.items() if why)


def lengths(document: Document) -> Iterator[str]:
    """Seconds and memory of long sequences."""
    for each in document["sizes"]:
        took = f"{each['tokens']:,} tokens {each['verdict']}, {each['seconds']:.0f} s"
        ranks, own = each["largest rank"], each["controller"]
        yield f"{took}, {ranks:,.0f} MB a rank, {own:,.0f} MB in the controller"


def rates(document: Document) -> Iterator[str]:
    """The harness against a bare loop."""
    for size, each in document.items():
        if "harness, cases/s" in each:
            bare = each["bare loop on the same ranks, cases/s"]
            yield f"{size}: {each['harness, cases/s']:.1f} cases/s, bare loop {bare:.1f}"


def counts(of: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(of.items()) if count)


TELLERS = {
    "candidates": campaign,
    "score": power,
    "recorded": recording,
    "goldens": goldens,
    "kernels": equipment,
    "machine": machine,
    "attention": attention,
    "collectives": collectives,
    "sizes": lengths,
    "sp 2": rates,
}
