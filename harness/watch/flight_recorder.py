"""The log of collectives that torch keeps itself, on every backend and for every caller.

torch's flight recorder knows which collectives are done, so it shows where a rank hangs. It also
has the collectives that a library hands to a backend without torch's dispatcher.
"""

import pickle
from typing import Any

from harness.watch.collectives import Collective, display_name

# More than a small step starts; the time to read the log grows with it.
BUFFER = 256
ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": str(BUFFER)}
DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


def log() -> list[Collective]:
    """Return the collectives that this process entered, oldest first."""
    return [
        Collective(
            group=display_name(*entry["process_group"]),
            sequence=entry["collective_seq_id"],
            kind=kind_of(entry),
            shape=", ".join(map(str, entry.get("input_sizes", []))),
            # NCCL retires an entry some time after it was done.
            done=bool(entry["retired"]) or entry.get("state") == "completed",
            dtype=", ".join(entry.get("input_dtypes", [])),
        )
        for entry in recorded()
    ]


def recorded() -> list[dict[str, Any]]:
    """Return torch's raw entries, oldest first."""
    import torch._C._distributed_c10d as c10d

    entries: list[dict[str, Any]] = []
    for name in DUMPS:
        dump = getattr(c10d, name, None)
        if dump is not None:
            # This process wrote the pickle itself; JSON would take longer.
            pickled = dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
            entries += pickle.loads(pickled).get("entries", [])  # noqa: S301
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def kind_of(entry: dict[str, Any]) -> str:
    """Return the kind of an entry, such as all_reduce."""
    return str(entry["profiling_name"]).partition(":")[2]
