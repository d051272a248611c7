"""References run on one thread, with kernels that are there already."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compute with one thread: equal bits on every machine, and cores are left to the ranks.

    Cases are small: a second thread would cost a reference ten times what it saves. And for half
    precisions oneDNN would compile, and keep, a kernel for every shape that it meets.
    """

    @wraps(function)
    def on_one_thread(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        threads, compiling = torch.get_num_threads(), torch.backends.mkldnn.enabled
        torch.set_num_threads(1)
        torch.backends.mkldnn.set_flags(_enabled=False)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(threads)
            torch.backends.mkldnn.set_flags(_enabled=compiling)

    return on_one_thread
