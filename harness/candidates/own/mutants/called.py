"""Mutants that experiments name otherwise than expected, as `mutants --json` measured."""

# The name from all emitted tensors, and the name from the required ones alone.
CALLED: dict[str, tuple[str, str]] = {
    "B11b": ("label-replaced", "unclassified"),
    "B48": ("kv-repeat", "kv-repeat"),
}
