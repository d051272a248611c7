"""How much the check finds: try every mutant and every benign variant, and score the outcome.

- A *trial* is the outcome of judging one mutant or benign variant, case after case.
- A *mutant* is killed if a case fails; otherwise it survives. It is named right if the failure has
  the name that the bank expects.
- A *benign variant* is flagged if a case fails, which must not happen.
- The *score* counts all trials, and says whether the check is good enough.

1. A trial ends with the first failure, because one failure is enough to find a bug.
2. A fault counts as a kill only if the unchanged step runs the same case without one: the native
   step, or the right step of the mutant's recipe. Otherwise the fault is not the mutant's, and the
   trial goes on with the next case.
3. Against its own step at sp 1, a mutant that is wrong at sp 1 too cannot be found. Such a mutant
   is counted as hidden, neither as killed nor as a survivor.
4. Trials do not depend on each other, so an engine can run them on several pools of ranks.
"""

from harness.detection.score import Score, Trier, score, score_here
from harness.detection.table import show
from harness.detection.trial import Trial
from harness.detection.watch import TrialProgress

__all__ = ["Score", "Trial", "TrialProgress", "Trier", "score", "score_here", "show"]
