"""Mutants that experiments do not call by their names; `mutants --json` measures it."""

# With all that it shows, and with what it must show alone.
CALLED: dict[str, tuple[str, str]] = {
    "B11b": ("label-replaced", "unclassified"),
    "B48": ("kv-repeat", "kv-repeat"),
}
