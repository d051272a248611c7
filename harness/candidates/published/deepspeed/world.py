"""Start DeepSpeed on the harness's process group."""

import logging
import sys

import deepspeed
import deepspeed.comm.torch

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def install() -> None:
    """Keep it from compiling a kernel for shared memory, for a minute; gloo needs none."""
    vars(sys.modules["deepspeed.comm.torch"])["build_shm_op"] = lambda: None


def start() -> None:
    """Wrap DeepSpeed's own communication around the process group of the harness."""
    if not deepspeed.comm.is_initialized():
        install()
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
