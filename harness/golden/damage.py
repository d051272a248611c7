"""What is wrong with a store, in one sentence each."""

from dataclasses import dataclass


class BadGolden(ValueError):
    """A file that is not what it should be, or a store that cannot be written."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One file, and what is wrong with it."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"
