"""Mutants that experiments name otherwise than expected, as `mutants --json` measured."""

# The name from all emitted tensors, and the name from the required ones alone. A step with a
# recipe shows the same in both cases.
CALLED: dict[str, tuple[str, str]] = {
    "B11b": ("label-replaced", "unclassified"),
    "B48": ("kv-repeat", "kv-repeat"),
    "B186": ("unclassified", "unclassified"),
    "B187": ("unclassified", "unclassified"),
    "B198": ("unclassified", "unclassified"),
    "B153": ("unclassified", "unclassified"),
    "B158": ("gradient-missing", "gradient-missing"),
    "B172": ("term-wrong", "term-wrong"),
    "B184": ("unclassified", "unclassified"),
    "B231": ("unclassified", "unclassified"),
    "B232": ("unclassified", "unclassified"),
    "B233": ("unclassified", "unclassified"),
    "B234": ("unclassified", "unclassified"),
}
