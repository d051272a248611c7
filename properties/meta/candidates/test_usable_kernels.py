"""What a kernel lacks is said before a rank tries it."""

import sys
from dataclasses import replace

import pytest
import torch

from harness.candidates.own.native.kernels import sdpa
from harness.candidates.own.native.usable import lacking, unsupported_reason
from harness.case import parse
from harness.doctor import examine
from properties.helpers.standins import STANDINS, StandIn, flash_attn_varlen_func, in_place


def gpus(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """A machine with these GPUs, as far as torch is asked."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)


@pytest.mark.parametrize(("kernel", "function"), STANDINS.values(), ids=STANDINS)
def test_a_kernel_lacks_nothing_or_says_what(
    kernel: str, function: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = parse(f"case/1 rows=2:11 kernel={kernel} dtype=bf16")
    with in_place(function):
        gpus(monkeypatch, (8, 0), (9, 0))
        assert unsupported_reason(case) is None
        gpus(monkeypatch, (9, 0), (7, 5))
        assert lacking(kernel) == ["a GPU of sm80 or newer (one has sm75)"]
        gpus(monkeypatch)
        assert unsupported_reason(case) == (
            f"kernel={kernel}: this machine lacks a CUDA device (torch finds none); "
            "use kernel=eager or sdpa"
        )


def test_a_package_that_is_older_or_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, (8, 0))
    # It has none of the arguments that are asked for.
    with in_place(sdpa):
        assert lacking("varlen") == ["torch>=2.11 (this varlen_attn has no window_size)"]
        assert lacking("flash") == [
            "flash-attn>=2.8 (this flash_attn_varlen_func has no deterministic)"
        ]
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    (missing,) = lacking("flash")
    assert missing.startswith("flash-attn>=2.8 (import of flash_attn ")


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("dtype=fp64", "dtype=fp64 is none of bf16 and fp16, all that it computes in; use one"),
        ("dtype=fp32", "dtype=fp32 is none of bf16 and fp16, all that it computes in; use one"),
        ("dtype=bf16 dim=512", "head_dim=512 is more than 256, the most that it takes; use less"),
    ],
)
def test_a_case_that_a_kernel_cannot_compute_is_refused(
    kernel: str, setting: str, said: str
) -> None:
    case = parse(f"case/1 rows=2:11 kernel={kernel} {setting}")
    assert str(unsupported_reason(case)).startswith(f"kernel={kernel}: {said}")
    assert unsupported_reason(replace(case, kernel="sdpa")) is None


def test_the_doctor_says_what_a_kernel_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch)
    found = examine()["kernels"]
    assert {kernel: found[kernel]["usable"] for kernel in found} == {
        "eager": True,
        "sdpa": True,
        "varlen": False,
        "flash": False,
    }
    assert found["varlen"]["why"] == "lacks a CUDA device (torch finds none)"
    with in_place(flash_attn_varlen_func):
        gpus(monkeypatch, (8, 0))
        assert examine()["kernels"]["flash"]["usable"]
