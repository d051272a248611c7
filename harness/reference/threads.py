"""Runs references on one thread, and without kernels that would have to be compiled first."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function so that it computes on one thread and without oneDNN.

    One thread gives equal bits on every machine and leaves the other cores to the ranks. Cases
    are so small that a second thread costs ten times what it saves. For half precisions oneDNN
    would compile a kernel for every shape, and keep it.
    """

    @wraps(function)
    def on_one_thread(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        threads, had_onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
        torch.set_num_threads(1)
        torch.backends.mkldnn.set_flags(_enabled=False)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)
            torch.backends.mkldnn.set_flags(_enabled=had_onednn)

    return on_one_thread
