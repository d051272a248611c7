"""Candidates of our own: the native step, its mutants and its benign variants."""
