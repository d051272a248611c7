"""Which candidates are still to be judged in a campaign. Needs no torch."""

import msgspec


class Ask(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A candidate, the failures that it is known to have by their marks, and how many are wanted.

    Cases that fail as is known are counted, and none of them is looked into any more.
    """

    candidate: str
    marks: tuple[str, ...] = ()
    wanted: int = 1


Asked = tuple[Ask, ...]
