"""Cases that each entry refuses."""

from functools import partial

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.limits import RING_DTYPES, decoder

refused = partial(decoder, dtypes=RING_DTYPES)

LIMITS: dict[str, Limit] = {"zigzag": refused, "zigzag-varlen": refused, "llama3": refused}
