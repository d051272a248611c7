#!/usr/bin/env -S .venv/bin/python
"""Picture the failures of `docs/bundles/`: run it as `.venv/bin/python ci/pictures.py`.

It needs a browser: apt-get install chromium; .venv/bin/pip install '.[browser]'. With --again the
failures are seen and kept once more first, as after a change of what a bundle holds.
"""

import argparse
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from project import ROOT

from harness.candidates import locate
from harness.case import parse
from harness.commands.report import read_document
from harness.failure.bundle import write_bundle
from harness.failure.confirm import describe_history
from harness.failure.replay import replay
from harness.judge import Job, Session
from harness.ranks.device import choose_placement
from harness.ranks.pool import RankPool
from harness.report.html import pages_of

KEPT, PICTURES = ROOT / "docs" / "bundles", ROOT / "docs" / "pictures"
MADE = PICTURES / "made.json"
WIDTH, TALLEST = 860, 1500

BATCH = "rows=7:1101111,4:0011:left,6:111111 layers=1 vocab=32 dim=4 dtype=fp64 seed=3"
UNEVEN = "rows=3:000,6:000011,6:101101,2:00:left heads=16/8 vocab=5 dim=4 seed=30915"
# By the name of the picture: the candidate that fails, and the cases that the ranks run in turn.
SHOWN = {
    "label-lost": ("mutants.B21", [f"case/1 {BATCH} heads=4/2 sp=2 dp=1"]),
    "rows-leak": ("mutants.B56", [f"case/1 {BATCH} heads=4/2 sp=2 dp=1"]),
    "over-sp": ("mutants.B120", [f"case/1 {BATCH} heads=4/2 sp=2 dp=1"]),
    "hang": ("mutants.B140", [f"case/1 {UNEVEN} sp=2 dp=2"]),
    "stateful": (
        "mutants.B48",
        ["case/1 rows=4:1111 heads=4/2 sp=2", f"case/1 {BATCH} heads=4/4 sp=2 dp=1"],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--again", action="store_true", help="see and keep the failures anew")
    if parser.parse_args().again:
        keep()
    picture()


def pages() -> dict[str, str]:
    """Return the page of each failure, by the name of its picture."""
    documents = {name: read_document(str(KEPT / name)) for name in SHOWN}
    return {name: pages_of(name, document)[0].text for name, document in documents.items()}


def digests() -> dict[str, str]:
    """Return a digest of each page, which says of which state the pictures are."""
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in pages().items()}


def keep() -> None:
    """Make each failure again, and store it as a bundle."""
    for name, (candidate, lines) in SHOWN.items():
        cases = [parse(line) for line in lines]
        with RankPool(4, choose_placement("cpu", "gloo", 4), deadline=5.0) as pool:
            *before, case = cases
            session, job = Session(pool), Job(case, locate(candidate))
            shown = replay(job, session, before)
            shown.diagnose(session)
            if before:
                with session.fresh(4) as others:
                    assert not replay(job, others).failed
                why = describe_history(before)
                shown.comparison = shown.comparison.rooted("stale-state", why)
        with tempfile.TemporaryDirectory() as folder:
            bundle = write_bundle(shown.comparison, Path(folder))
            for file in ("failure.json", "explanation.txt", "ranks.txt"):
                text = (bundle / file).read_text()
                (bundle / file).write_text(text.replace(f"{ROOT}/", ""))
            shutil.rmtree(KEPT / name, ignore_errors=True)
            shutil.move(bundle, KEPT / name)
        print(shown.text())


def picture() -> None:
    """Take a picture of each page, and write down its digest."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, text in pages().items():
            page = browser.new_page(viewport={"width": WIDTH, "height": 800})
            page.set_content(text)
            # The picture ends below the part that a reader looks at first.
            bottom = page.evaluate(
                "(document.querySelector('table, .copied ~ section ~ section ~ section')"
                ".getBoundingClientRect().bottom)"
            )
            clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": min(bottom + 8, TALLEST)}
            page.screenshot(path=PICTURES / f"{name}.png", clip=clip, full_page=True)
        browser.close()
    MADE.write_text(f"{json.dumps(digests(), indent=1)}\n")


if __name__ == "__main__":
    main()
