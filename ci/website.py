#!/usr/bin/env -S .venv/bin/python
"""Build the documentation as a site: run it as `.venv/bin/python ci/website.py [FOLDER]`.

The site has the README, `docs/`, and a page for each published package and each finding. The
default folder is build/site.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from project import ROOT

from harness.commands.report import read_document
from harness.report.html import pages_of, save
from harness.report.html.conformance import finding_file

DOCS = ROOT / "docs"


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    with tempfile.TemporaryDirectory() as folder:
        write_sources(Path(folder) / "docs")
        shutil.copy(ROOT / "ci" / "mkdocs.yml", folder)
        words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
        return subprocess.run(words, cwd=folder, check=False).returncode


def write_sources(folder: Path) -> None:
    """Write the pages that MkDocs builds the site of into a folder."""
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("bundles", "*.json"))
    shutil.copy(ROOT / "README.md", folder / "index.md")
    shutil.copy(ROOT / "golden" / "README.md", folder / "store.md")
    save(folder / "pages", pages_of("docs", read_document(str(DOCS / "conformance.json"))))
    for page in folder.glob("*.md"):
        page.write_text(adapt_links(page.read_text()))
    for page in (folder / "findings").glob("*/*.md"):
        picture = f"pages/{finding_file(f'{page.parent.name}-{page.stem}')}"
        if (folder / picture).exists():
            page.write_text(f"{page.read_text()}\n[Where it is wrong](../../{picture})\n")


def adapt_links(text: str) -> str:
    """Adapt links to the site; a link to a file that the site does not have becomes plain text."""
    text = text.replace("](conformance.json)", "](pages/conformance.html)")
    text = re.sub(r"\]\((?:\.\./)?golden/README\.md", "](store.md", text)
    text = re.sub(r"\]\((?:\.\./)?docs/", "](", text)
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", text)


if __name__ == "__main__":
    sys.exit(main())
