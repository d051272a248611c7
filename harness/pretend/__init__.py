"""A GPU that is not there: tensors say `cuda:0`, and are computed on the CPU.

What is found is what torch refuses on a real one: two devices in one operation, numpy on a tensor
of the GPU, a GPU of another number. Nothing of how a GPU computes is seen.
"""

from harness.pretend.machine import begin
from harness.pretend.tensor import made

UNSEEN = (
    "pretended GPU: which device tensors are on was seen, and nothing of CUDA's numerics, kernels, "
    "streams, memory or autocast, of NCCL, inductor or FSDP"
)

__all__ = ["UNSEEN", "begin", "made"]
