"""One thing that went wrong, before it is known what caused what."""

from dataclasses import dataclass

from harness.trace import Kind

# A death explains the end of a supervisor, both explain the exceptions of peers, and all of them a
# wait; never the reverse.
BLAME = (
    Kind.PROTOCOL,
    Kind.STALE,
    Kind.START,
    Kind.DIED,
    Kind.LAUNCHER,
    Kind.RAISED,
    Kind.HUNG,
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """What was noticed, and of which rank."""

    kind: Kind
    text: str
    rank: int | None = None
    # The run that the rank itself spoke of.
    run: int | None = None
    moment: int = 0
    # Nothing happened, and that for too long.
    late: bool = False
    stack: str = ""

    @property
    def rank_of_blame(self) -> tuple[int, int]:
        """Smallest is the cause."""
        return BLAME.index(self.kind), self.moment
