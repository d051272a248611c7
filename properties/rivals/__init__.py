"""The acceptance rules of published test suites, scored on the same mutants as the harness.

A rival is such a rule: a list of checks with tolerances (`rule`), written down from its source
(`table`). `contest` gives every rival the traces of every mutant, on the shapes of the rival's own
tests and on generated cases. `python -m properties.rivals` prints the table of docs/mutants.md.

1. Rules are data, so that a test can try each bound just inside and just outside of it.
2. If the original leaves a choice, the rule takes the one that makes the suite look better.
3. A crash or a hang counts as found by every rival, since whoever runs the suite sees it.
4. Correct steps are judged as well: a rule that rejects them finds mutants by chance.
"""
