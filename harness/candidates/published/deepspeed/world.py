"""Start DeepSpeed on the harness's process group."""

import logging
import sys
from typing import Any
from unittest.mock import patch

import deepspeed
import deepspeed.comm.torch

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def install() -> None:
    """Keep it from compiling a kernel for shared memory from now on."""
    _without_shared_memory().start()


def start() -> None:
    """Wrap DeepSpeed's own communication around the process group of the harness."""
    if not deepspeed.comm.is_initialized():
        with _without_shared_memory():
            deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def _without_shared_memory() -> Any:
    """Return a patch; without it a kernel is compiled for a minute, and gloo needs none."""
    return patch.object(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None)
