"""The one thing that no engine can do without."""


class NoRanks(RuntimeError):
    """A command that can say nothing without ranks has none; the text explains it."""

    def __init__(self, text: str, summary: str) -> None:
        super().__init__(text)
        self.summary = summary
