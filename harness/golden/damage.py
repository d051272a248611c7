"""Damages of a store: an exception, and a record of one damaged file."""

from dataclasses import dataclass


class BadGolden(ValueError):
    """A store is damaged or cannot be used, or no golden can be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Damage:
    """One file, and a sentence on what is wrong with it."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"
