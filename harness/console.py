"""Print text and tables to a terminal or a log, for a reader who may copy them."""

from rich import box
from rich.console import Console
from rich.table import Table

# Columns of a console on which every table fits.
UNLIMITED_WIDTH = 10_000


def print_table(console: Console, table: Table) -> None:
    """Print a table if all of it fits the width; else a line for each row, so that none is cut."""
    unlimited = console.options.update(width=UNLIMITED_WIDTH)
    if console.measure(table, options=unlimited).maximum <= console.width:
        console.print(table)
        return
    heads = [str(column.header) for column in table.columns]
    print_plain(console, f"\n{table.title}")
    for row in zip(*(column.cells for column in table.columns), strict=True):
        first, *others = map(str, row)
        fields = (f"{head} {cell}" for head, cell in zip(heads[1:], others, strict=True))
        filled = [field for field in fields if not field.endswith("·")]
        print_plain(console, f"  {first}: {', '.join(filled)}")


def print_plain(console: Console, text: str, end: str = "\n") -> None:
    """Print text that a user may copy: neither wrapped nor coloured, whatever it contains."""
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True, end=end)


def empty_table(title: str) -> Table:
    """Return an empty table with a title, and a rule under its heads only."""
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0, 0, 1),
    )
