#!/usr/bin/env -S .venv/bin/python
"""Build the documentation as a site: run it as `.venv/bin/python ci/website.py [FOLDER]`.

In it are the README, `docs/`, and a page for each library and each finding. The default folder is
build/site.
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
        sources(Path(folder) / "docs")
        shutil.copy(ROOT / "ci" / "mkdocs.yml", folder)
        words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
        return subprocess.run(words, cwd=folder, check=False).returncode


def sources(folder: Path) -> None:
    """All that the site is made of, as MkDocs wants it."""
    shutil.copytree(DOCS, folder, ignore=shutil.ignore_patterns("bundles", "*.json"))
    shutil.copy(ROOT / "README.md", folder / "index.md")
    shutil.copy(ROOT / "golden" / "README.md", folder / "store.md")
    save(folder / "pages", pages_of("docs", read_document(str(DOCS / "conformance.json"))))
    for page in folder.glob("*.md"):
        page.write_text(linked(page.read_text()))
    for page in (folder / "findings").glob("*/*.md"):
        picture = f"pages/{finding_file(f'{page.parent.name}-{page.stem}')}"
        if (folder / picture).exists():
            page.write_text(f"{page.read_text()}\n[Where it is wrong](../../{picture})\n")


def linked(text: str) -> str:
    """With links as they are within the site; what is only in the repository is no link."""
    text = text.replace("](conformance.json)", "](pages/conformance.html)")
    text = re.sub(r"\]\((?:\.\./)?golden/README\.md", "](store.md", text)
    text = re.sub(r"\]\((?:\.\./)?docs/", "](", text)
    return re.sub(r"\[([^\]]*)\]\(\.\./[^)]*\)", r"\1", text)


if __name__ == "__main__":
    sys.exit(main())
