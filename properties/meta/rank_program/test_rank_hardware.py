"""The description that a rank sends of its hardware."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from harness.pretend import pretend_gpu
from harness.rank_program.hardware import count_allocations, describe_hardware, nccl_version
from harness.rank_program.warm_up import DTYPES, warm_up
from properties.helpers.groups import group_of_one

MAPS = """7f1 r-xp 00000000 08:01 42 /usr/lib/libc.so.6
7f2 r-xp 00000000 08:01 43 /opt/newer/libnccl.so.2
"""


@pytest.mark.parametrize("preloaded", [True, False])
def test_the_version_is_that_of_the_loaded_nccl_not_of_the_one_torch_was_compiled_with(
    preloaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_version(code: ctypes.c_int) -> None:
        code.value = 23_007

    library = SimpleNamespace(ncclGetVersion=get_version)
    found = {None: library if preloaded else object(), "/opt/newer/libnccl.so.2": library}
    monkeypatch.setattr(Path, "read_text", lambda _: "" if preloaded else MAPS)
    monkeypatch.setattr(ctypes, "CDLL", found.__getitem__)
    monkeypatch.setattr(ctypes, "byref", lambda code: code)
    nccl_version.cache_clear()
    assert nccl_version() == (2, 30, 7)
    nccl_version.cache_clear()


def test_without_nccl_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: MAPS.splitlines()[0])
    nccl_version.cache_clear()
    assert nccl_version() is None
    nccl_version.cache_clear()


def test_a_rank_on_the_cpu_reports_the_build_of_torch_only() -> None:
    assert describe_hardware(torch.device("cpu")) == {"torch": torch.__version__}


def test_a_kernel_that_raises_does_not_keep_a_rank_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[torch.dtype] = []

    def raises(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        tried.append(query.dtype)
        raise RuntimeError("No valid execution plans built.")

    with group_of_one(), pretend_gpu() as device:
        before = count_allocations(device)
        warm_up(device)
        assert count_allocations(device) > before
        monkeypatch.setattr(F, "scaled_dot_product_attention", raises)
        warm_up(device)
    assert tried == list(DTYPES)


def test_a_driver_that_does_not_answer_does_not_keep_a_rank_from_starting() -> None:
    with pretend_gpu() as device:
        found = describe_hardware(device)
    assert found["cuda"] == "pretended GPU"
    assert found["cuda driver"].startswith("unknown, ") or found["cuda driver"][0].isdigit()
    assert found["torch"] == torch.__version__
