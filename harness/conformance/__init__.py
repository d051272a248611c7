"""Judge published packages on goldens and generated cases, and write down what is found.

- A *candidate* here is a released training step, wired as its package describes. Its ranks run in
  an environment of its own.
- A *stage* is a set of cases that a candidate is asked for, and how they came out: the goldens, or
  the generated cases of one sp.
- *Examined* is everything that was found of one candidate. A *release* is a shorter examination of
  one version of it.
- The *results* are what is kept: the document `conformance.json`. All pages are made from it.

`drawn` chooses the cases, `examined` and `releases` run them on `pools`, `failures` shrinks what
fails, and `document` keeps the results. `page`, `by_library`, `by_loss`, `findings`,
`upstream_reports` and `changes` write the pages and tables; `scripts` runs what stands beside a
page, and `upstream_patches` and `upstream_tests` know what stands there for the library's
repository.

1. At sp 1 no library can be blamed: a failure there is one of our wiring, or of the step around
   the exchange. So sp 1 comes first, and after a failure nothing else is asked.
2. A batch that rounding makes wrong at sp 1 too is UNSUPPORTED at a larger sp, because nothing
   that is shared is to blame.
3. Faults are expensive, since each costs a launch of ranks. So a listed fault is not asked for any
   more after it was seen often enough, and many faults that are not listed end a stage.
4. Every listed bug is judged on its smallest case. A bug that does not show is named as stale.
5. Pages are made from the document alone, so they can be written again without a run.
"""

from harness.conformance.by_library import by_library
from harness.conformance.by_loss import by_loss
from harness.conformance.changes import changes
from harness.conformance.document import (
    BadResults,
    Results,
    examined_record,
    read,
    read_results,
    release_records,
    write,
)
from harness.conformance.examined import Examined, examine
from harness.conformance.findings import findings, not_findings
from harness.conformance.gpu_scripts import gpu_script_of
from harness.conformance.page import page
from harness.conformance.releases import sweep
from harness.conformance.request import Request
from harness.conformance.scripts import script_of, transcript_of
from harness.conformance.upstream_patches import refuses, upstream_patch_of
from harness.conformance.upstream_reports import (
    finding_names,
    finding_record,
    upstream_reports,
)
from harness.conformance.upstream_tests import upstream_test_of

__all__ = [
    "BadResults",
    "Examined",
    "Request",
    "Results",
    "by_library",
    "by_loss",
    "changes",
    "examine",
    "examined_record",
    "finding_names",
    "finding_record",
    "findings",
    "gpu_script_of",
    "not_findings",
    "page",
    "read",
    "read_results",
    "refuses",
    "release_records",
    "script_of",
    "sweep",
    "transcript_of",
    "upstream_patch_of",
    "upstream_reports",
    "upstream_test_of",
    "write",
]
