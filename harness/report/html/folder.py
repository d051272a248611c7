"""Write pages into a folder, each whole or not at all, with an index if there are several."""

import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path

from harness.report.html.pages import Page
from harness.report.html.render import render
from harness.storage import require_writable, write_file
from harness.untrusted import BadInput

INDEX = "index.html"
# The title and the verdict of a page are within these characters.
HEAD = 4096
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_VERDICT = re.compile(r'<meta name="verdict" content="([A-Z]*)">')


def require_writable_folder(folder: Path) -> None:
    """Raise `BadInput` for a folder that cannot be written; called before anything is run."""
    try:
        require_writable(folder)
    except OSError as error:
        raise BadInput(f"--report={folder}: cannot be written: {error.strerror}") from None


def save(folder: Path, pages: Iterable[Page]) -> list[Path]:
    """Write pages and return their paths; update the index if the folder has several pages."""
    written = [_write(folder, page) for page in pages]
    files = sorted(file for file in folder.glob("*.html") if file.name != INDEX)
    if len(files) > 1:
        entries = [_index_entry(file) for file in files]
        text = render("index.html", title="What was found", verdict="", pages=entries)
        _write(folder, Page(INDEX, text))
    return written


def _write(folder: Path, page: Page) -> Path:
    # A record may hold half a surrogate pair, which UTF-8 cannot encode.
    write_file(folder / page.name, page.text.encode(errors="replace"))
    return folder / page.name


def _index_entry(file: Path) -> tuple[str, str, str]:
    """Return the name of a page's file, its title and its verdict."""
    with file.open(encoding="utf-8", errors="replace") as opened:
        head = opened.read(HEAD)
    title, verdict = _TITLE.search(head), _VERDICT.search(head)
    return file.name, unescape(title[1]) if title else file.name, verdict[1] if verdict else ""
