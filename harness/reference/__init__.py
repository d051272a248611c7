"""Plain training on one device, computed twice in two ways."""

from harness.reference.decoder import Decoder
from harness.reference.given import with_what_is_given
from harness.reference.padded import reference
from harness.reference.rowwise import rowwise
from harness.reference.weights import TORCH_DTYPES, seeded_weights

__all__ = [
    "TORCH_DTYPES",
    "Decoder",
    "reference",
    "rowwise",
    "seeded_weights",
    "with_what_is_given",
]
