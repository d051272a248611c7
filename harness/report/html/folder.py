"""Pages in a folder: each is there whole or not at all, and an index says what there is."""

import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path

from harness.report.html.pages import Page
from harness.report.html.render import render
from harness.storage import require_writable, write_file
from harness.untrusted import BadInput

INDEX = "index.html"
# A page says at its beginning what it is.
HEAD = 4096
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_VERDICT = re.compile(r'<meta name="verdict" content="([A-Z]*)">')


def may_write(folder: Path) -> None:
    """Refuse, before anything is run, a folder in which nothing can be written."""
    try:
        require_writable(folder)
    except OSError as error:
        raise BadInput(f"--report={folder}: cannot be written: {error.strerror}") from None


def save(folder: Path, pages: Iterable[Page]) -> list[Path]:
    """Write them; if there are several in the folder then, an index as well."""
    written = [_put(folder, page) for page in pages]
    others = sorted(each for each in folder.glob("*.html") if each.name != INDEX)
    if len(others) > 1:
        listed = [_entry(each) for each in others]
        text = render("index.html", title="What was found", verdict="", pages=listed)
        _put(folder, Page(INDEX, text))
    return written


def _put(folder: Path, page: Page) -> Path:
    # Half a surrogate pair may come from anywhere.
    write_file(folder / page.name, page.text.encode(errors="replace"))
    return folder / page.name


def _entry(file: Path) -> tuple[str, str, str]:
    with file.open(encoding="utf-8", errors="replace") as opened:
        head = opened.read(HEAD)
    title, verdict = _TITLE.search(head), _VERDICT.search(head)
    return file.name, unescape(title[1]) if title else file.name, verdict[1] if verdict else ""
