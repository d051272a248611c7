"""Plain training on one device: the reference, computed in two independent ways.

* The *padded* reference is the textbook step, on a padded batch. In fp64 it is the oracle, in the
  case's own dtype the baseline.
* The *row-wise* oracle computes every row alone and unpadded, token by token.
* The *decoder* is the model that both share with our own candidates: Llama, Qwen2 or Qwen3.
* A *tap* is a callback that gets the intermediate tensors of a step.

1. Two references that share only the case, the weights and the model confirm each other: a mistake
   in batching, masking, shifting or averaging would show as a difference.
2. Candidates must not import the code of a reference that pads, shifts, counts or attends. So a
   mistake in it cannot cancel out.
3. Weights are rounded to the case's dtype also for the oracle. So oracle and baseline differ in
   arithmetic only, and not in where they start.
4. References run on one thread, which gives the same bits on every machine and leaves the other
   cores to the ranks.
5. Large cases are computed in blocks, so that memory grows with the number of tokens and not with
   its square.
"""

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
