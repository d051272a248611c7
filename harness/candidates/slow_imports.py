"""Which modules a candidate's file imports that take seconds to import.

A supervisor imports them once, so that the ranks that it forks need not. The file is only read.
"""

import re
from functools import lru_cache
from pathlib import Path

# By what a file imports: the module that takes long.
SLOW = {
    "transformers": "transformers.modeling_utils",
    "harness.recipes.families": "transformers.modeling_utils",
    "harness.recipes.ulysses": "transformers.modeling_utils",
}
IMPORT = re.compile(
    rf"^[ \t]*(?:from|import)[ \t]+({'|'.join(map(re.escape, SLOW))})\b", re.MULTILINE
)
# A file of the user's with such a name is what the import means.
OWN = ("transformers.py", "transformers")
# More of a file is not read.
MOST = 1 << 20


# Asked with every case of a candidate.
@lru_cache(maxsize=64)
def slow_imports(file: Path) -> tuple[str, ...]:
    """Return the modules of a file, but none that a module beside it may stand for."""
    if not file.is_file() or any(file.with_name(name).exists() for name in OWN):
        return ()
    with file.open(errors="replace") as opened:
        return tuple(sorted({SLOW[name] for name in IMPORT.findall(opened.read(MOST))}))
