"""The site builds without broken links, and its pictures are up to date."""

import json
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pictures
import pytest
import website

from properties.helpers.commands import run_to_end
from properties.helpers.places import ROOT


@pytest.mark.slow
def test_the_site_builds_and_no_link_is_broken(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = run_to_end(sys.executable, ROOT / "ci" / "website.py", site)
    assert done.returncode == 0, done.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text()):
            if ":" not in link and not link.startswith("/"):
                assert (page.parent / unquote(link)).exists(), f"{page.name}: {link}"


def test_links_are_adapted_to_the_site_and_links_to_other_files_become_text() -> None:
    text = "[a](docs/x.md) [b](../golden/README.md) [c](../harness/cli.py) [d](conformance.json)"
    assert website.adapt_links(text) == "[a](x.md) [b](store.md) c [d](pages/conformance.html)"


def test_the_pictures_show_the_stored_failures() -> None:
    made = json.loads(pictures.MADE.read_text())
    assert made == pictures.digests(), "run ci/pictures.py"
    shown = {file.stem for file in pictures.PICTURES.glob("*.png")}
    assert shown == made.keys() == pictures.SHOWN.keys()
    page = (ROOT / "docs" / "reports.md").read_text()
    assert all(f"(pictures/{name}.png)" in page for name in shown)
