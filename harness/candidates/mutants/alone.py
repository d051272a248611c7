"""Which property kills each mutant without any reference; written by ci/alone."""

ALONE: dict[str, str] = {
    "B01": "a run comes to its end, and its parts fit together",
    "B02": "four ranks may be replicas or peers",
    "B03": "a run comes to its end, and its parts fit together",
    "B03b": "four ranks may be replicas or peers",
    "B04": "four ranks may be replicas or peers",
    "B05": "four ranks may be replicas or peers",
    "B06": "four ranks may be replicas or peers",
    "B06b": "four ranks may be replicas or peers",
    "B07": "four ranks may be replicas or peers",
    "B08": "an unsupervised row adds padding and nothing else",
}
