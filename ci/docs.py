#!/usr/bin/env -S .venv/bin/python
"""Write the tables that say what the code says; run it as `.venv/bin/python ci/docs.py`."""

import re
from pathlib import Path

from project import ROOT
from tier.steps import PLANS, STEPS

from harness.campaign.markdown import marked, table
from harness.candidates.own.benign import BANK as BENIGN
from harness.candidates.own.mutants import BANK as MUTANTS
from harness.candidates.own.mutants import LEFT_OUT
from harness.candidates.own.mutants.alone import ALONE
from harness.candidates.published.known import bugs
from harness.candidates.published.library import libraries
from harness.conformance import by_library, read
from harness.diagnosis import ANOMALIES
from harness.generation.situations import SITUATIONS
from harness.golden import Store, examine
from properties.metamorphic.content import CONTENT
from properties.metamorphic.layout import LAYOUT, RESHARDED


def main() -> None:
    for page, text in pages().items():
        page.write_text(text)


def pages() -> dict[Path, str]:
    """Every page that holds a table, as it should be."""
    heads, *libraries = by_library(read(ROOT / "docs"))
    tables = {
        ("README.md", "conformance"): table(heads, libraries),
        ("docs/cases.md", "situations"): table(
            ("corner", "why it matters"),
            ((name, sentence(predicate)) for name, predicate in SITUATIONS.items()),
        ),
        ("docs/properties.md", "relations"): table(
            ("property", "finds"),
            (
                (relation.claim, MUTANTS[relation.kills].sentence)
                for relation in (*LAYOUT, RESHARDED, *CONTENT)
            ),
        ),
        ("docs/anomalies.md", "anomalies"): table(
            ("name", "what it looks like", "usual cause", "for example"),
            (
                (f"`{anomaly.name}`", anomaly.looks, anomaly.cause, examples(anomaly.name))
                for anomaly in ANOMALIES.values()
            ),
        ),
        ("docs/mutants.md", "mutants"): table(
            ("mutant", "the bug", "needs", "named", "alone", "threads"),
            (
                (
                    mutant.key,
                    mutant.sentence,
                    ", ".join(mutant.needs) or "nothing",
                    mutant.anomaly,
                    ALONE[mutant.key],
                    ", ".join(mutant.threads),
                )
                for mutant in MUTANTS.values()
            ),
        ),
        ("docs/mutants.md", "benign"): table(
            ("variant", "the change", "could be taken for"),
            ((variant.key, variant.sentence, variant.looks_like) for variant in BENIGN.values()),
        ),
        ("docs/mutants.md", "left-out"): table(("bug", "why"), LEFT_OUT.items()),
        ("docs/gpu.md", "steps"): table(
            ("step", "shows", "at most", "on"),
            (
                (f"`{step.name}`", step.shows, f"{step.most} s", ", ".join(step.devices))
                for step in STEPS
            ),
        ),
        ("docs/gpu.md", "plans"): table(
            ("plan", "steps"),
            ((f"`{name}`", ", ".join(f"`{step}`" for step in of)) for name, of in PLANS.items()),
        ),
        ("golden/README.md", "goldens"): table(
            ("golden", "tokens", "hunts", "what is peculiar about it"),
            (
                (
                    f"`{golden.vector.name}`",
                    str(golden.vector.case.tokens),
                    ", ".join((*golden.vector.hunts, *published(golden.vector.name))),
                    golden.vector.comment,
                )
                for golden in examine(Store(ROOT / "golden").files())[0].values()
            ),
        ),
    }
    written: dict[Path, str] = {}
    for (name, mark), rows in tables.items():
        page = ROOT / name
        written[page] = marked(written.get(page, page.read_text()), mark, rows)
    return written


def published(golden: str) -> list[str]:
    """Bugs of released packages that show on a golden's batch."""
    return [
        f"`{library.name}` {bug.key}"
        for library in libraries().values()
        for bug in bugs(library)
        if bug.golden == golden
    ]


def examples(anomaly: str) -> str:
    """Threads about what is called so."""
    threads = [
        thread for m in MUTANTS.values() if m.anomaly == anomaly for thread in m.threads[:1]
    ]
    return ", ".join(list(dict.fromkeys(threads))[:3])


def sentence(documented: object) -> str:
    """A docstring on one line, without its number in somebody's catalogue."""
    text = documented.__doc__
    assert text, documented
    return re.sub(r"^B\d+: (.)", lambda found: found[1].upper(), " ".join(text.split()))


if __name__ == "__main__":
    main()
