"""What a rank says of its hardware."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.ranks.hardware import described, loaded_nccl

MAPS = """7f1 r-xp 00000000 08:01 42 /usr/lib/libc.so.6
7f2 r-xp 00000000 08:01 43 /opt/newer/libnccl.so.2
"""


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in this process that says it is NCCL 2.30.7."""

    def version(code: ctypes.c_int) -> None:
        ctypes.cast(ctypes.pointer(code), ctypes.POINTER(ctypes.c_int)).contents.value = 23_007

    monkeypatch.setattr(Path, "read_text", lambda _: MAPS)
    monkeypatch.setattr(ctypes, "byref", lambda code: code)
    monkeypatch.setattr(
        ctypes,
        "CDLL",
        lambda name: {"/opt/newer/libnccl.so.2": SimpleNamespace(ncclGetVersion=version)}[name],
    )
    loaded_nccl.cache_clear()


def test_the_nccl_that_is_loaded_is_asked_and_not_the_one_torch_was_compiled_with(
    loaded: None,
) -> None:
    del loaded
    assert loaded_nccl() == (2, 30, 7)
    loaded_nccl.cache_clear()


def test_without_nccl_there_is_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: MAPS.splitlines()[0])
    loaded_nccl.cache_clear()
    assert loaded_nccl() is None
    loaded_nccl.cache_clear()


def test_on_a_cpu_the_build_of_torch_is_all_there_is_to_tell() -> None:
    assert described(torch.device("cpu")) == {"torch": torch.__version__}
