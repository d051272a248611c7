"""Adds to a reference the tensors that follow from the case alone, without any model."""

import numpy as np

from harness.case import Case
from harness.reference.padded import averaged_rows
from harness.trace import Entry, Trace


def with_what_is_given(case: Case, trace: Trace) -> Trace:
    """Return the trace with ids, labels, and the weight of each token's loss in the loss."""
    lengths, tokens = [len(row) for row in case.rows], np.arange(case.tokens)
    row_n = np.repeat(np.arange(len(lengths)), lengths)
    ids_n = np.concatenate([case.ids_of(row) for row in range(len(lengths))])
    nll = trace["nll"]
    predicting = tokens[nll.tokens]
    weight_n = np.zeros(case.tokens, nll.values.dtype)
    groups = [*averaged_rows(case)]
    for rows in groups:
        counted = predicting[np.isin(row_n[predicting], rows)]
        weight_n[counted] = 1 / max(len(counted), 1) / len(groups)
    extended = Trace()
    extended.put("ids", Entry(ids_n, tokens))
    extended.put("labels", Entry(ids_n[predicting + 1], predicting))
    extended.put("nll", nll)
    extended.put("weight", Entry(weight_n, tokens))
    for key in trace:
        extended.put(key, trace[key])
    return extended
