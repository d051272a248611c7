"""Start DeepSpeed on the harness's process group."""

import logging
import sys
from unittest.mock import patch

import deepspeed
import deepspeed.comm.torch

logging.getLogger("DeepSpeed").setLevel(logging.ERROR)


def start() -> None:
    """Wrap DeepSpeed's own communication around the process group of the harness."""
    if not deepspeed.comm.is_initialized():
        # Otherwise it compiles a kernel for shared memory, for a minute; gloo needs none.
        with patch.object(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None):
            deepspeed.init_distributed(dist_backend="gloo", verbose=False)
