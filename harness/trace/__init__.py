"""What a run left behind: tensors by name and token, from one device or from many ranks."""

from harness.trace.assemble import Assembly, Misfit, MisfitKind, assemble
from harness.trace.fault import WAITS, Fault, Kind, Unsupported
from harness.trace.fragment import PAD_TOKEN, Fragment, digest
from harness.trace.trace import (
    GRADIENT,
    Entry,
    Trace,
    is_given,
    is_light,
    is_of_plain_training,
    is_required,
    to_numpy,
)

Outcome = Assembly | Fault | Unsupported

__all__ = [
    "GRADIENT",
    "PAD_TOKEN",
    "WAITS",
    "Assembly",
    "Entry",
    "Fault",
    "Fragment",
    "Kind",
    "Misfit",
    "MisfitKind",
    "Outcome",
    "Trace",
    "Unsupported",
    "assemble",
    "digest",
    "is_given",
    "is_light",
    "is_of_plain_training",
    "is_required",
    "to_numpy",
]
