"""What a rank says of its hardware."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from harness.pretend import pretended
from harness.ranks.hardware import allocations, described, loaded_nccl
from harness.ranks.warm_up import DTYPES, warm_up
from properties.helpers.groups import group_of_one

MAPS = """7f1 r-xp 00000000 08:01 42 /usr/lib/libc.so.6
7f2 r-xp 00000000 08:01 43 /opt/newer/libnccl.so.2
"""


@pytest.mark.parametrize("preloaded", [True, False])
def test_the_nccl_that_is_called_is_asked_and_not_the_one_torch_was_compiled_with(
    preloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(code: ctypes.c_int) -> None:
        code.value = 23_007

    library = SimpleNamespace(ncclGetVersion=tell)
    found = {None: library if preloaded else object(), "/opt/newer/libnccl.so.2": library}
    monkeypatch.setattr(Path, "read_text", lambda _: "" if preloaded else MAPS)
    monkeypatch.setattr(ctypes, "CDLL", found.__getitem__)
    monkeypatch.setattr(ctypes, "byref", lambda code: code)
    loaded_nccl.cache_clear()
    assert loaded_nccl() == (2, 30, 7)
    loaded_nccl.cache_clear()


def test_without_nccl_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: MAPS.splitlines()[0])
    loaded_nccl.cache_clear()
    assert loaded_nccl() is None
    loaded_nccl.cache_clear()


def test_on_a_cpu_the_build_of_torch_is_all_there_is_to_tell() -> None:
    assert described(torch.device("cpu")) == {"torch": torch.__version__}


def test_a_kernel_that_raises_keeps_no_rank_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[torch.dtype] = []

    def raises(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        tried.append(query.dtype)
        raise RuntimeError("No valid execution plans built.")

    with group_of_one(), pretended() as device:
        before = allocations(device)
        warm_up(device)
        assert allocations(device) > before
        monkeypatch.setattr(F, "scaled_dot_product_attention", raises)
        warm_up(device)
    assert tried == list(DTYPES)


def test_what_a_driver_does_not_tell_keeps_no_rank_from_starting() -> None:
    with pretended() as device:
        found = described(device)
    assert found["cuda"] == "pretended GPU"
    assert found["cuda driver"].startswith("unknown, ") or found["cuda driver"][0].isdigit()
    assert found["torch"] == torch.__version__
