"""What each entry refuses."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import decoder
from harness.case import Case

# Rings merge blocks in fp32, whatever dtype the blocks have.
DTYPES = ("fp32", "bf16")


def refused(case: Case) -> str | None:
    return decoder(case, DTYPES)


LIMITS: dict[str, Limit] = {"zigzag": refused, "zigzag-varlen": refused, "llama3": refused}
