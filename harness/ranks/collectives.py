"""The log of collectives that torch keeps by itself, on every backend and from every caller.

torch's flight recorder sees a collective wherever it was started: in Python, through functional
collectives or inside DDP's reducer. It is the only witness that needs no cooperation.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

# Enough to hold the tail of any step; reading the log costs time in proportion.
BUFFER = 128
ENVIRONMENT = {
    "TORCH_FR_BUFFER_SIZE": str(BUFFER),
    "TORCH_NCCL_TRACE_BUFFER_SIZE": str(BUFFER),
}
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the log."""

    group: str
    sequence: int
    kind: str
    shape: str
    done: bool

    def __str__(self) -> str:
        return f"{self.kind} #{self.sequence} on {self.group}, shape {self.shape}"


def recorded() -> list[dict[str, Any]]:
    """Raw entries, oldest first."""
    import torch._C._distributed_c10d as c10d

    entries: list[dict[str, Any]] = []
    for name in DUMPS:
        dump = getattr(c10d, name, None)
        if dump is not None:
            entries += json.loads(dump(includeCollectives=True)).get("entries", [])
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def counts_since(moment_ns: int) -> dict[str, int]:
    """How many collectives of each kind were entered since a moment of `time.time_ns()`."""
    return dict(
        Counter(
            _kind(entry)
            for entry in recorded()
            if entry["time_created_ns"] >= moment_ns and entry["process_group"][1] != "gate"
        )
    )


def log() -> list[Collective]:
    """The log, without the harness's own gate."""
    return [
        Collective(
            group=entry["process_group"][1],
            sequence=entry["collective_seq_id"],
            kind=_kind(entry),
            shape=str(entry.get("input_sizes", [])),
            done=bool(entry["retired"]),
        )
        for entry in recorded()
        if entry["process_group"][1] != "gate"
    ]


def first_disagreement(logs: dict[int, list[Collective]]) -> str:
    """Where ranks of one group part: who entered what, and who never came; or nothing."""
    for group in sorted({entry.group for entries in logs.values() for entry in entries}):
        members = {
            rank: {entry.sequence: entry for entry in entries if entry.group == group}
            for rank, entries in logs.items()
        }
        members = {rank: entries for rank, entries in members.items() if entries}
        # Ranks keep only a tail each: compare from where all of them still remember.
        start = max(min(entries) for entries in members.values())
        stop = max(max(entries) for entries in members.values())
        for sequence in range(start, stop + 1):
            entered = {rank: entries.get(sequence) for rank, entries in members.items()}
            if len({(e.kind, e.shape) if e else None for e in entered.values()}) > 1:
                said = "; ".join(
                    f"rank {rank} entered {entry}" if entry else f"rank {rank} never came"
                    for rank, entry in sorted(entered.items())
                )
                return f"collective #{sequence} on {group}: {said}"
    return ""


def _kind(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"]).partition(":")[2]
