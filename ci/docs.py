#!/usr/bin/env -S .venv/bin/python
"""Write the tables of the pages from the code and from the results of `conformance`.

Run it as `.venv/bin/python ci/docs.py`.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from project import ROOT
from tier.steps import PLANS, STEPS

from harness.anomalies import ANOMALIES
from harness.campaign.markdown import replace_marked, table
from harness.candidates.bank import Benign, Mutant
from harness.candidates.own.benign import BANK as BENIGN
from harness.candidates.own.mutants import BANK as MUTANTS
from harness.candidates.own.mutants import LEFT_OUT
from harness.candidates.own.mutants.alone import ALONE
from harness.candidates.own.mutants.called import CALLED
from harness.candidates.published.bugs import bugs
from harness.candidates.published.library import libraries
from harness.commands import conformance
from harness.conformance import by_library, by_loss, finding_names, finding_record, read, write
from harness.conformance.scripts import FOLDER
from harness.generation.situations import SITUATIONS
from harness.golden import Store, examine
from properties.metamorphic.content import CONTENT
from properties.metamorphic.layout import LAYOUT, RESHARDED

Row = tuple[str, ...]


def main() -> None:
    update_findings()
    for page in (ROOT / "docs" / FOLDER).glob("*/*.md"):
        page.unlink()
    for page, text in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)


def update_findings() -> None:
    """Update the findings in the results: drop those that are listed as findings no more."""
    results = read(ROOT / "docs")
    listed = finding_names()
    results["findings"] = {
        name: finding_record(name.partition(" ")[2], record)
        for name, record in results["findings"].items()
        if name in listed
    }
    write(ROOT / "docs", results)


def pages() -> dict[Path, str]:
    """Return the text of every page that is generated or holds a generated table."""
    texts: dict[str, str] = {}
    for name, mark, heads, rows in tables():
        page = texts.get(name) or (ROOT / name).read_text()
        texts[name] = replace_marked(page, mark, table(heads, rows))
    generated = conformance.pages(read(ROOT / "docs"), ROOT / "docs")
    texts |= {f"docs/{name}": page for name, page in generated.items()}
    return {ROOT / name: page for name, page in texts.items()}


def tables() -> Iterator[tuple[str, str, Row, Iterable[Row]]]:
    """Yield for each table its page, the mark of its place there, its heads and its rows."""
    heads, *libraries = by_library(read(ROOT / "docs"))
    yield "README.md", "conformance", heads, libraries
    heads, *candidates = by_loss(read(ROOT / "docs"))
    yield "docs/published.md", "losses", heads, candidates
    situations = ((name, sentence(predicate)) for name, predicate in SITUATIONS.items())
    yield "docs/cases.md", "situations", ("situation", "why it matters"), situations
    relations = (*LAYOUT, RESHARDED, *CONTENT)
    claims = ((each.claim, MUTANTS[each.kills].sentence) for each in relations)
    yield "docs/properties.md", "relations", ("property", "finds"), claims
    heads = ("name", "what it looks like", "usual cause", "for example")
    anomalies = ((f"`{a.name}`", a.looks, a.cause, examples(a.name)) for a in ANOMALIES.values())
    yield "docs/anomalies.md", "anomalies", heads, anomalies
    heads = (
        "mutant", "step", "the bug", "needs", "name", "all keys", "required", "alone", "threads",
    )  # fmt: skip
    mutants = (
        (m.key, step_name(m), m.sentence, ", ".join(m.needs) or "nothing", m.anomaly,
         *named(m.key), ALONE.get(m.key, "not tried"), ", ".join(m.threads))
        for m in MUTANTS.values()
    )  # fmt: skip
    yield "docs/mutants.md", "mutants", heads, mutants
    heads = ("variant", "step", "the change", "could be taken for")
    benign = (
        (each.key, step_name(each), each.sentence, each.looks_like) for each in BENIGN.values()
    )
    yield "docs/mutants.md", "benign", heads, benign
    yield "docs/mutants.md", "left-out", ("bug", "why"), LEFT_OUT.items()
    steps = ((f"`{s.name}`", s.shows, f"{s.most} s", ", ".join(s.devices)) for s in STEPS)
    yield "docs/gpu.md", "steps", ("step", "shows", "at most", "on"), steps
    plans = ((f"`{name}`", ", ".join(f"`{step}`" for step in of)) for name, of in PLANS.items())
    yield "docs/gpu.md", "plans", ("plan", "steps"), plans
    heads = ("golden", "tokens", "hunts", "what is peculiar about it")
    vectors = [golden.vector for golden in examine(Store(ROOT / "golden").files())[0].values()]
    goldens = (
        (f"`{v.name}`", str(v.case.tokens), ", ".join((*v.hunts, *upstream(v.name))), v.comment)
        for v in vectors
    )
    yield "golden/README.md", "goldens", heads, goldens


def step_name(entry: Mutant | Benign) -> str:
    """Return what a mutant or a benign variant is made of, as the tables have it."""
    return f"`{entry.trains}`" if entry.trains else "native"


def upstream(golden: str) -> list[str]:
    """Return the bugs of published packages that the batch of a golden shows."""
    return [
        f"`{library.name}` {bug.key}"
        for library in libraries().values()
        for bug in bugs(library)
        if bug.golden == golden
    ]


def examples(anomaly: str) -> str:
    """Return up to three public threads about bugs with this anomaly."""
    threads = [
        thread for m in MUTANTS.values() if m.anomaly == anomaly for thread in m.threads[:1]
    ]
    return ", ".join(list(dict.fromkeys(threads))[:3])


def named(key: str) -> tuple[str, ...]:
    """Return how a diagnosis names a mutant, from all keys and from the required ones only.

    That is `yes` if the name is the mutant's anomaly, else the name.
    """
    anomaly = MUTANTS[key].anomaly
    return tuple(
        "yes" if name == anomaly else name for name in CALLED.get(key, (anomaly, anomaly))
    )


def sentence(documented: object) -> str:
    """Return a docstring on one line, without the key of a mutant in front."""
    text = documented.__doc__
    assert text, documented
    return re.sub(r"^B\d+: (.)", lambda found: found[1].upper(), " ".join(text.split()))


if __name__ == "__main__":
    main()
