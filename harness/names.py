"""Names of candidates where there is little room for them, or none for some of their signs."""

import hashlib
import re
from collections.abc import Collection

LONGEST_FILE_NAME = 100


def short_names(candidates: Collection[str]) -> dict[str, str]:
    """Shorten each to as many folders as tell it from all others here."""
    return {name: _short(name, set(candidates) - {name}) for name in candidates}


def _short(name: str, others: Collection[str]) -> str:
    parts = name.split("/")
    for count in range(1, len(parts)):
        tail = "/".join(parts[-count:])
        if not any(f"/{other}".endswith(f"/{tail}") for other in others):
            return tail
    return name


def file_name(candidate: str) -> str:
    """As a file may be called."""
    path, slash, last = candidate.rpartition("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", last)[:LONGEST_FILE_NAME]
    # Files in several folders may have one name.
    return f"{name}-{hashlib.sha256(path.encode()).hexdigest()[:6]}" if slash else name
