"""The name of a failure: from the first tensor that is wrong, and from experiments.

Terms:
* A **look** (`harness.compare.Look`) is a name of `harness.anomalies` with the reason for it.
* **Evidence** is one judged run: the comparison, the oracle's trace and the candidate's.
* An **experiment** is the evidence from a small case near the failing one.
* A **pass** is plain training of one stream, as data in which one thing can be changed.
* A **hypothesis** yields variants of a pass, each with one thing wrong and a name for it.
* A **reading** is the weight and the label of every token, computed from the gradients.
* A rank's **share** of a gradient is what the tokens of that rank add to it.
* The **picture** (`harness.compare.picture`) is what a report draws. This package adds readings
  and shares to it.

A failure gets its name in this order:
1. A run without a trace is named by the kind of its fault (`name_fault`).
2. A traced run is named by its own tensors (`name_divergence`): first tokens that no rank or two
   ranks computed, then the first wrong tensor in execution order, then the reported loss.
3. `diagnose` runs experiments. If they show the failure, their name replaces the earlier one:
   a. `experiments` draws cases, made less plain until two of them show the failure;
   b. each wrong experiment alone gets every name that fits its required keys. If its losses of
      tokens are right, the names come from the reading (`readout`, `labels`, `weights`);
   c. if most experiments with wrong losses of tokens show no cause, hypotheses are eliminated
      (`elimination`), then ranges of visible tokens are tried (`visible_ranges`);
   d. otherwise the name is one that fits all wrong experiments, or else the one that fits most;
   e. gradients that no reading explains are explained by `backward` or by `shares`;
   f. if there is still no cause, all tensors that the candidate emits are used;
   g. small errors are called rounding only if `rounding` confirms it, and `unexplained` lists
      what an unclassified failure is not.

Reasons:
1. One case fits many names. So names are tried on many cases, and one that fits all of them wins.
2. A hypothesis predicts numbers: it is left only if it gives every wrong loss to rounding.
3. Required keys come first, because every candidate emits them.
4. Plain cases come first, because their numbers are the easiest to explain.
5. No module here knows a candidate. Experiments run through a function that the caller passes.
"""

from harness.diagnosis.diagnose import EXPLAINED_BY_SHARES, diagnose, read_weights
from harness.diagnosis.evidence import Evidence
from harness.diagnosis.naming import name_divergence, name_fault
from harness.diagnosis.picture import with_reading
from harness.diagnosis.shares import with_shares

__all__ = [
    "EXPLAINED_BY_SHARES",
    "Evidence",
    "diagnose",
    "name_divergence",
    "name_fault",
    "read_weights",
    "with_reading",
    "with_shares",
]
