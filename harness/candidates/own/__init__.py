"""The candidates that come with the harness.

- `native` is a sequence-parallel step in two dialects, which must always pass.
- `shares` are right steps of any model of transformers, on many losses.
- `mutants` are right steps with one real bug each, which the check must find and name.
- `benign` are right steps with one change that looks wrong, which must pass.

Mutants show that the check can fail, and benign variants that it does not reject what is merely
different. Both are subclasses of a right step and replace one part of it, so that the change is
all that a failure, or a false alarm, can come from. `harness.candidates.bank` registers them.
"""
