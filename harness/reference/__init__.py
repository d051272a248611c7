"""Plain training on one device, computed twice in two ways."""

from harness.reference.decoder import Attend, Decoder, Tap, at_least_fp32
from harness.reference.given import with_what_is_given
from harness.reference.padded import reference
from harness.reference.rowwise import rowwise
from harness.reference.weights import TORCH_DTYPES, seeded_direction, seeded_weights

__all__ = [
    "TORCH_DTYPES",
    "Attend",
    "Decoder",
    "Tap",
    "at_least_fp32",
    "reference",
    "rowwise",
    "seeded_direction",
    "seeded_weights",
    "with_what_is_given",
]
