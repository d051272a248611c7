"""The tensors of a run, by name and token, from one device or from many ranks.

* A *fragment* is what one rank emits under a key: a tensor, and the token number of each row.
* A tensor emitted without token numbers is a *replica*: all ranks must have equal copies.
* `assemble` puts the fragments of all ranks together into a *trace*: an entry for each key.
* A *misfit* is a token that is lost or owned twice, or copies that differ.
* A *fault* is the reason why a run has no trace that could be judged.

1. Token numbers come out of the candidate's own sharding. So no layout has to be declared, and a
   token that the candidate loses or repeats is found.
2. A misfit is a wrong result of the candidate, so it becomes part of the comparison. A fragment
   that breaks the protocol becomes a fault.
3. Ranks other than rank 0 usually send only a digest of a replica: equality needs no values.
4. The order of keys in a trace is the order of execution, so the first wrong key is the nearest
   to the cause.
5. Traces hold numpy arrays, so that they are stored and compared without torch. Half precisions
   are widened to fp32, which loses nothing.
"""

from harness.trace.assemble import Assembly, Misfit, MisfitKind, assemble
from harness.trace.fault import WAITS, Fault, Kind, Unsupported
from harness.trace.fragment import PAD_TOKEN, Fragment, digest
from harness.trace.trace import (
    COLUMN,
    COMPUTED,
    DRAWN,
    FROZEN,
    GRADIENT,
    METRIC,
    Entry,
    Trace,
    is_input,
    is_kept,
    is_of_plain_training,
    is_required,
    is_small,
    to_numpy,
)

Outcome = Assembly | Fault | Unsupported

__all__ = [
    "COLUMN",
    "COMPUTED",
    "DRAWN",
    "FROZEN",
    "GRADIENT",
    "METRIC",
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
    "is_input",
    "is_kept",
    "is_of_plain_training",
    "is_required",
    "is_small",
    "to_numpy",
]
