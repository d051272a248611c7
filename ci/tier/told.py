"""What a step's document says, in one line."""

from collections import Counter
from typing import Any


def in_short(document: dict[str, Any]) -> str:
    """By what it has; nothing where it is of none of these kinds."""
    tellers = {
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
    told = next((tell(document) for key, tell in tellers.items() if key in document), "")
    return "; ".join(filter(None, [told, placed(document)]))


def placed(document: dict[str, Any]) -> str:
    """Where it was computed and by which torch, if it says so."""
    versions, place = document.get("versions", {}), document.get("placement", {})
    where = {**place, "torch": place.get("torch") or versions.get("torch")}
    return ", ".join(f"{name} {listed(value)}" for name, value in where.items() if value)


def listed(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def campaign(document: dict[str, Any]) -> str:
    """What `check` or `merge` found."""
    seconds = document["seconds"]
    rate = f", {document['cases'] / seconds:.1f} cases/s" if seconds else ""
    each = (
        f"{name} {counts(tally['verdicts'])}, used {tally['used']:.2g}"
        for name, tally in document["candidates"].items()
    )
    ended = [f"ended by {document['ended']}"] if document.get("ended") else []
    before = [f"{what} {took:.1f} s" for what, took in document.get("seconds of", {}).items()]
    found = f"{document['cases']} cases{rate}: {'; '.join(each)}"
    return "; ".join([found, *ended, *before])


def power(document: dict[str, Any]) -> str:
    """What `mutants` found."""
    score = document["score"]
    parts = []
    if score["mutants"]:
        parts.append(f"{score['killed']} of {score['mutants']} mutants killed")
        parts.append(f"{score['named_right']} named right")
    if score["benign"]:
        parts.append(f"{score['flagged']} of {score['benign']} benign variants flagged")
    return ", ".join(parts)


def recording(document: dict[str, Any]) -> str:
    """What `golden generate --out` wrote."""
    left_out = "; ".join(f"{name} {why}" for name, why in document["left_out"].items())
    return f"{len(document['recorded'])} goldens recorded{left_out and f', left out: {left_out}'}"


def goldens(document: dict[str, Any]) -> str:
    """What `golden verify` found, of a store of the oracle's or of a recording."""
    if isinstance(document["goldens"], list):
        changes = Counter(golden["change"] for golden in document["goldens"])
        return f"{len(document['goldens'])} goldens, changes: {counts(changes)}"
    runs = sum(document["verdicts"].values())
    rate = f", {runs / document['seconds']:.1f} runs/s" if document["seconds"] else ""
    return f"{document['goldens']} goldens, {runs} runs{rate}: {counts(document['verdicts'])}"


def equipment(document: dict[str, Any]) -> str:
    """What `doctor` found, and why not the rest."""
    parts = []
    for part in ("devices", "transports", "kernels"):
        there = [name for name, each in document[part].items() if each["usable"]]
        lacking = [
            f"{name} not: {each['why']}"
            for name, each in document[part].items()
            if not each["usable"]
        ]
        parts.append(f"{part} {', '.join(there)} ({'; '.join(lacking)})")
    return "; ".join(parts)


def machine(document: dict[str, Any]) -> str:
    """What there is, and what is slow."""
    told = document["machine"]
    gpus = told["gpus"]
    seen = [" ".join((gpu["name"], gpu["memory.total"])) for gpu in gpus if isinstance(gpu, dict)]
    looked_up, imported = (
        told[f"seconds to {what}"] for what in ("look up the host's own name", "import torch")
    )
    return (
        f"{', '.join(seen) or gpus}; {told['cores']} cores, "
        f"{told['GB of memory']['MemTotal']:.0f} GB; seconds to look up its own name: "
        f"{looked_up}, to import torch: {imported}; pidfd {told['pidfd']}"
    )


def attention(document: dict[str, Any]) -> str:
    """How much each kernel can do; by dtype what torch takes by itself, and how far it is off."""
    tried, failed = (
        Counter(each["kernel"] for each in document["attention"] if each["error"] or not only)
        for only in (False, True)
    )
    parts = [f"{name} {count - failed[name]} of {count}" for name, count in tried.items()]
    own = [each for each in document["attention"] if "took" in each]
    for dtype in dict.fromkeys(each["dtype"] for each in own):
        its = [each for each in own if each["dtype"] == dtype]
        off = max((each["off"] for each in its if each["off"] is not None), default=0.0)
        taken = counts(Counter(each["took"] for each in its))
        parts.append(f"in {dtype} torch takes {taken}, off by {off:.1g}")
    return "; ".join(filter(None, [*parts, document["broken"]]))


def collectives(document: dict[str, Any]) -> str:
    """Which work in every dtype, and why the others do not."""
    told = document["collectives"]
    bad = {name: next(filter(None, each.values()), "") for name, each in told.items()}
    good = [name for name, why in bad.items() if not why]
    refused = [f"{name} not: {why}" for name, why in bad.items() if why]
    return "; ".join([f"work: {', '.join(good)}", *refused])


def lengths(document: dict[str, Any]) -> str:
    """Seconds and memory of long sequences."""
    return "; ".join(
        f"{each['tokens']:,} tokens {each['verdict']}, {each['seconds']:.0f} s, "
        f"{each['largest rank']:,.0f} MB a rank, {each['controller']:,.0f} MB in the controller"
        for each in document["sizes"]
    )


def rates(document: dict[str, Any]) -> str:
    """The harness against a bare loop."""
    figures = ("harness, cases/s", "bare loop on the same ranks, cases/s")
    return "; ".join(
        f"{size}: {each[figures[0]]:.1f} cases/s, bare loop {each[figures[1]]:.1f}"
        for size, each in document.items()
        if figures[0] in each
    )


def counts(of: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(of.items()) if count)
