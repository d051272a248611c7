"""The log of collectives that torch keeps by itself, on every backend and from every caller.

torch's flight recorder knows which of them are done. What a rank that hangs was doing is read from
it, and so are those that something hands to a backend without torch's dispatcher.
"""

import pickle
from typing import Any

from harness.watch.collectives import Collective, called

# More than a small step starts; reading the log costs time in proportion.
BUFFER = 256
ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": str(BUFFER)}
DUMPS = ("_dump_fr_trace", "_dump_nccl_trace")


def log() -> list[Collective]:
    """What was entered as records, oldest first."""
    return [
        Collective(
            group=called(*entry["process_group"]),
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
    """Raw entries, oldest first."""
    import torch._C._distributed_c10d as c10d

    entries: list[dict[str, Any]] = []
    for name in DUMPS:
        dump = getattr(c10d, name, None)
        if dump is not None:
            # It is this process that wrote it; as JSON it takes longer.
            written = dump(includeCollectives=True, includeStackTraces=False, onlyActive=False)
            entries += pickle.loads(written).get("entries", [])  # noqa: S301
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def kind_of(entry: dict[str, Any]) -> str:
    """What was entered, such as all_reduce."""
    return str(entry["profiling_name"]).partition(":")[2]
