"""Write tables as Markdown, and put text into marked places of a page. Standard library only."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ("---",) * len(heads), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in cells] for cells in lines)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in escaped)


def replace_marked(page: str, mark: str, text: str) -> str:
    """Replace what a page has between `<!-- mark -->` and the next `<!-- end -->`."""
    before, start, rest = page.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    assert start, f"the page has no {mark}"
    assert end, f"nothing ends {mark}"
    return f"{before}{start}{text}{end}{after}"
