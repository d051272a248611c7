"""The exception for a command without ranks."""


class NoRanks(RuntimeError):
    """A command cannot do anything, because ranks do not start; the text explains why."""

    def __init__(self, text: str, summary: str) -> None:
        super().__init__(text)
        self.summary = summary
