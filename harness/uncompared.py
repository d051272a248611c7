"""The message about keys that a candidate emitted and that were not compared."""

from collections.abc import Sequence

MOST_KEYS = 8


def describe_uncompared(keys: Sequence[str], *, itself: bool) -> str:
    """Return the names of these keys, and what is checked of them nevertheless.

    `itself` says whether the reference is the candidate's own step at sp 1.
    """
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    names = f"{', '.join(keys[:MOST_KEYS])}{more}"
    copies = "only copies that several ranks emit without tokens are held against each other"
    if not itself:
        return f"emitted, and compared with nothing: {names}; {copies}"
    return (
        f"emitted, and not compared: {names}; {copies}, and `repro` compares all that is emitted "
        "at sp 1 as well"
    )
