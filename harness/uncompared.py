"""What is said of keys that were emitted and that there is nothing to compare with."""

from collections.abc import Sequence

MOST_KEYS = 8


def told_of(keys: Sequence[str]) -> str:
    """Their names, and what is asked of them all the same."""
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    return (
        f"emitted, and compared with nothing: {', '.join(keys[:MOST_KEYS])}{more}; only copies "
        "that several ranks emit without tokens are held against each other"
    )
