"""References run on one thread."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def one_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same bits on every machine, and no pool of threads fighting with ranks for cores.

    Cases are small: a second thread would cost a reference ten times what it saves.
    """

    @wraps(function)
    def on_one_thread(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(before)

    return on_one_thread
