"""A kernel that this machine or case cannot run is refused before a rank tries it."""

import sys
from dataclasses import replace

import pytest
import torch

from harness.candidates.own.native.kernels import sdpa
from harness.candidates.own.native.usable import lacking, unsupported_reason
from harness.case import parse
from harness.doctor import examine
from properties.helpers.standins import STANDINS, StandIn, flash_attn_varlen_func, installed


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, *capabilities: tuple[int, int]) -> None:
    """Make torch report GPUs of these compute capabilities."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)


@pytest.mark.parametrize(("kernel", "function"), STANDINS.values(), ids=STANDINS)
def test_a_kernel_lacks_nothing_or_reports_what(
    kernel: str, function: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = parse(f"case/1 rows=2:11 kernel={kernel} dtype=bf16")
    with installed(function):
        pretend_gpus(monkeypatch, (8, 0), (9, 0))
        assert unsupported_reason(case) is None
        pretend_gpus(monkeypatch, (9, 0), (7, 5))
        assert lacking(kernel) == ["a GPU of sm80 or newer (one has sm75)"]
        pretend_gpus(monkeypatch)
        assert unsupported_reason(case) == (
            f"kernel={kernel}: this machine lacks a CUDA device (torch finds none); "
            "use kernel=eager or sdpa"
        )


def test_an_old_or_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, (8, 0))
    # `sdpa` lacks the arguments that new releases of both kernels have.
    with installed(sdpa):
        assert lacking("varlen") == ["torch>=2.11 (this varlen_attn has no window_size)"]
        assert lacking("flash") == [
            "flash-attn>=2.8 (this flash_attn_varlen_func has no deterministic)"
        ]
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    (missing,) = lacking("flash")
    assert missing.startswith("flash-attn>=2.8 (import of flash_attn ")


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dtype=fp64", "dtype=fp64 is none of bf16 and fp16, all that it computes in; use one"),
        ("dtype=fp32", "dtype=fp32 is none of bf16 and fp16, all that it computes in; use one"),
        ("dtype=bf16 dim=512", "head_dim=512 is more than 256, the most that it takes; use less"),
    ],
)
def test_a_case_that_a_kernel_cannot_compute_is_refused(
    kernel: str, setting: str, message: str
) -> None:
    case = parse(f"case/1 rows=2:11 kernel={kernel} {setting}")
    assert str(unsupported_reason(case)).startswith(f"kernel={kernel}: {message}")
    assert unsupported_reason(replace(case, kernel="sdpa")) is None


def test_the_doctor_reports_what_a_kernel_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch)
    found = examine()["kernels"]
    assert {kernel: found[kernel]["usable"] for kernel in found} == {
        "eager": True,
        "sdpa": True,
        "varlen": False,
        "flash": False,
    }
    assert found["varlen"]["why"] == "lacks a CUDA device (torch finds none)"
    with installed(flash_attn_varlen_func):
        pretend_gpus(monkeypatch, (8, 0))
        assert examine()["kernels"]["flash"]["usable"]
