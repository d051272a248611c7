"""What plain training knows of tokens without its model."""

import numpy as np

from harness.case import Case
from harness.reference.padded import averaged_rows
from harness.trace import Entry, Trace


def with_what_is_given(case: Case, trace: Trace) -> Trace:
    """Add ids, labels, and what the loss contract makes each loss weigh."""
    lengths, every = [len(row) for row in case.rows], np.arange(case.tokens)
    row_n = np.repeat(np.arange(len(lengths)), lengths)
    ids_n = np.concatenate([case.ids_of(row) for row in range(len(lengths))])
    nll = trace["nll"]
    targets = every[nll.tokens]
    weight_n = np.zeros(case.tokens, nll.values.dtype)
    groups = [*averaged_rows(case)]
    for rows in groups:
        counted = targets[np.isin(row_n[targets], rows)]
        weight_n[counted] = 1 / max(len(counted), 1) / len(groups)
    whole = Trace()
    whole.put("ids", Entry(ids_n, every))
    whole.put("labels", Entry(ids_n[targets + 1], targets))
    whole.put("nll", nll)
    whole.put("weight", Entry(weight_n, every))
    for key in trace:
        whole.put(key, trace[key])
    return whole
