"""A GPU that is not there: tensors say `cuda:0`, and are computed on the CPU.

What is found is what torch refuses on a real one: two devices in one operation, numpy on a tensor
of the GPU, a GPU of another number. Nothing of how a GPU computes is seen.
"""

from harness.pretend.machine import begin, pretended
from harness.pretend.tensor import made

__all__ = ["begin", "made", "pretended"]
