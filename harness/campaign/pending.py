"""Which candidates a campaign still has to judge. Needs no torch."""

import msgspec


class PendingCandidate(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A candidate that is to be judged, and how many more failures of it are wanted.

    `marks` are those of the failures that are known. A case that fails with one of them is
    counted, and neither shrunk nor named.
    """

    candidate: str
    marks: tuple[str, ...] = ()
    wanted: int = 1


PendingCandidates = tuple[PendingCandidate, ...]
