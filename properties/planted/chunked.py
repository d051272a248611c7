"""The native step with memory for hardly any logits."""

from torch import Tensor

from harness.candidates.own.native import GatherDialect

AT_ONCE = 100


class Chunked(GatherDialect):
    """Cross entropy gets a few tokens at a time, and raises if it gets more."""

    name = "chunked"
    max_logits_at_once = AT_ONCE

    def cross_entropy(self, logits_LV: Tensor, labels_L: Tensor) -> Tensor:
        tokens, vocabulary = logits_LV.shape
        assert tokens == 1 or tokens * vocabulary <= AT_ONCE, f"logits of {tokens} tokens at once"
        return super().cross_entropy(logits_LV, labels_L)


CHUNKED = Chunked()
