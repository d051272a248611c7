"""The acceptance rules of published suites, to be scored on the same mutants as our own."""
