"""Changes to a source, by byte."""

import ast
from collections.abc import Iterable

Node = ast.expr | ast.stmt | ast.arg
# From, to, and what stands there instead.
Edit = tuple[int, int, bytes]


class Place:
    """Where in a source lines and nodes are."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self._begins = [0]
        for line in self.lines:
            self._begins.append(self._begins[-1] + len(line))

    def line(self, number: int) -> int:
        """The byte at which a line begins; the end of the file for what is behind it."""
        return self._begins[min(number, len(self._begins)) - 1]

    def above(self, number: int) -> int:
        """The byte at which a line begins, or the comment right above it."""
        while number > 1 and self.lines[number - 2].lstrip().startswith(b"#"):
            number -= 1
        return self.line(number)

    def start(self, node: Node) -> int:
        return self.line(node.lineno) + node.col_offset

    def end(self, node: Node) -> int:
        return self.line(node.end_lineno or 0) + (node.end_col_offset or 0)

    def text(self, node: Node) -> bytes:
        return self.source[self.start(node) : self.end(node)]


def edited(source: bytes, edits: Iterable[Edit], start: int = 0, end: int | None = None) -> bytes:
    """A piece of the source after changes that do not overlap."""
    pieces, at = [], start
    for begin, stop, new in sorted(edits):
        assert begin >= at, "edits do not overlap"
        pieces += [source[at:begin], new]
        at = stop
    return b"".join([*pieces, source[at:end]])
