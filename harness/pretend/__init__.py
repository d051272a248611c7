"""A pretended GPU: tensors report the device `cuda:0`, and are computed on the CPU.

It finds the mistakes that torch itself refuses on a real GPU: two devices in one operation, numpy
on a tensor of the GPU, a GPU with another number. It shows nothing of how a GPU computes.

* `tensor` has the tensor class; `rules` decides which operations a GPU would refuse.
* `modes` intercepts calls that have no such tensor among their arguments, and may return one.
* `machine` makes torch find one GPU; `over_gloo` refuses what gloo cannot send from a GPU.
"""

from harness.pretend.machine import pretend_gpu, pretend_gpu_for_good
from harness.pretend.tensor import tensors_made

__all__ = ["pretend_gpu", "pretend_gpu_for_good", "tensors_made"]
