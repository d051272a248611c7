"""Cases that each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import ALL_DTYPES, RING_DTYPES, decoder, first
from harness.case import Case
from harness.case.stated import ALL_RANKS


def ulysses(case: Case) -> str | None:
    """Refuse what Ulysses alone cannot run."""
    return decoder(case, ALL_DTYPES) or first(
        case.kv_heads % case.sp > 0
        and f"kv_heads={case.kv_heads} sp={case.sp}: it cuts kv heads and repeats none",
    )


def zigzag(case: Case) -> str | None:
    """Refuse what a ring alone cannot run."""
    return decoder(case, RING_DTYPES)


def usp(case: Case) -> str | None:
    """Refuse what a ring of Ulysses groups of two cannot run."""
    return decoder(case, RING_DTYPES) or first(
        case.sp == 2 and "sp=2: a ring of one sends to itself, which gloo cannot",
        case.kv_heads % min(case.sp, 2) > 0
        and f"kv_heads={case.kv_heads}: it cuts kv heads in two and repeats none",
    )


LIMITS: dict[str, Limit] = {
    "ulysses": ulysses,
    "zigzag": zigzag,
    "zigzag-fa3": zigzag,
    "usp": usp,
    "async": zigzag,
}
# It makes the groups of its rings over all ranks.
STATED = dict.fromkeys(("zigzag", "zigzag-fa3", "usp", "async"), ALL_RANKS)
