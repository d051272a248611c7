"""Names of candidates for places that are narrow or allow few characters, such as file names."""

import hashlib
import re
from collections.abc import Collection

LONGEST_FILE_NAME = 100


def short_names(candidates: Collection[str]) -> dict[str, str]:
    """Return for each name its shortest tail of path parts that no other name ends with."""
    return {name: _shorten(name, set(candidates) - {name}) for name in candidates}


def _shorten(name: str, others: Collection[str]) -> str:
    parts = name.split("/")
    for count in range(1, len(parts)):
        tail = "/".join(parts[-count:])
        if not any(f"/{other}".endswith(f"/{tail}") for other in others):
            return tail
    return name


def file_name(candidate: str) -> str:
    """Return a file name for a candidate; candidates in different folders get different ones."""
    path, slash, last = candidate.rpartition("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "-", last)[:LONGEST_FILE_NAME]
    return f"{name}-{hashlib.sha256(path.encode()).hexdigest()[:6]}" if slash else name
