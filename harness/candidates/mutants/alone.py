"""Which property kills each mutant without any reference; written by ci/alone."""

ALONE: dict[str, str] = {}
