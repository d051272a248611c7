"""What there is to choose from where no case asks for DDP or FSDP, or for kernels of CUDA."""

from harness.candidates.own.native.kernels import eager, sdpa
from harness.candidates.own.native.wrappers import Bare

WRAPPERS = {"none": Bare()}
KERNELS = {"eager": eager, "sdpa": sdpa}
