"""Tables as Markdown, and their places in a page; the standard library is enough for it."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in escaped)


def marked(page: str, mark: str, text: str) -> str:
    """A page with other text between `<!-- mark -->` and the next `<!-- end -->`."""
    before, start, rest = page.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    assert start, f"the page has no {mark}"
    assert end, f"nothing ends {mark}"
    return f"{before}{start}{text}{end}{after}"
