"""Where ranks run, on machines whose accelerators are made up.

No test here runs on a real accelerator.
"""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from harness.cli import main
from harness.compare import RanOn
from harness.doctor import examine
from harness.plugin import needs
from harness.ranks import device as devices
from harness.ranks.device import (
    TRANSPORTS,
    ImpossiblePlacement,
    choose_placement,
    share,
)
from harness.ranks.pool import DEADLINE
from harness.report.replay_command import rank_options
from properties.helpers.commands import options_of

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("no_rank")

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Have torch find so many accelerators of a kind; `refuses` is why none can be shared."""

    def make(kind: str, count: int, *, built: bool = True, refuses: str = "") -> None:
        found = SimpleNamespace(type=kind) if count else None
        for module, name, stub in (
            (torch.accelerator, "current_accelerator", lambda **_: found),
            (torch.accelerator, "device_count", lambda: count),
            (dist, "is_backend_available", lambda _: built),
            (devices, "why_ranks_cannot_share", lambda *_: refuses),
        ):
            monkeypatch.setattr(module, name, stub)

    return make


NPU_4 = "npu:0,npu:1,npu:2,npu:3"
GPU_4 = "cuda:0,cuda:1,cuda:2,cuda:3"


@pytest.mark.parametrize(
    ("kind", "count", "device", "transport", "placement"),
    [
        ("none", 0, "auto", "auto", "cpu gloo 1"),
        ("none", 0, "cpu", "gloo", "cpu gloo 1"),
        ("mps", 4, "auto", "auto", "cpu gloo 1"),
        ("cuda", 8, "cpu", "auto", "cpu gloo 1"),
        ("cuda", 8, "auto", "auto", f"{GPU_4} nccl 1"),
        ("cuda", 8, "cuda", "nccl", f"{GPU_4} nccl 1"),
        ("cuda", 8, "cuda", "gloo", f"{GPU_4} gloo 1"),
        ("cuda", 4, "cuda", "auto", f"{GPU_4} nccl 1"),
        ("cuda", 3, "cuda", "auto", "cuda:0,cuda:1,cuda:2 gloo 2"),
        ("cuda", 2, "auto", "auto", "cuda:0,cuda:1 gloo 2"),
        ("cuda", 1, "auto", "auto", "cuda:0 gloo 4"),
        ("cuda", 1, "cuda", "gloo", "cuda:0 gloo 4"),
        ("cuda", 1, "cuda", "nccl", "cuda:0 nccl 4"),
        ("cuda", 2, "auto", "nccl", "cuda:0,cuda:1 nccl 2"),
        ("npu", 8, "auto", "auto", f"{NPU_4} hccl 1"),
        ("npu", 4, "npu", "auto", f"{NPU_4} hccl 1"),
        ("npu", 3, "auto", "auto", "cpu gloo 1"),
        ("xpu", 4, "xpu", "auto", f"{NPU_4.replace('npu', 'xpu')} xccl 1"),
        ("xpu", 1, "auto", "auto", "cpu gloo 1"),
        ("none", 0, "pretend", "auto", "pretend:0 gloo 4"),
        ("cuda", 8, "pretend", "gloo", "pretend:0 gloo 4"),
    ],
)
def test_four_ranks_get_the_best_placement_that_the_machine_allows(
    machine: Machine, kind: str, count: int, device: str, transport: str, placement: str
) -> None:
    machine(kind, count)
    assert str(choose_placement(device, transport, 4)) == placement


@pytest.mark.parametrize(
    ("kind", "count", "device", "transport", "why"),
    [
        ("none", 0, "cuda", "auto", f"device=cuda: torch {torch.__version__} finds no CUDA"),
        ("none", 0, "npu", "auto", f"device=npu: torch {torch.__version__} finds no NPU"),
        ("cuda", 8, "xpu", "auto", f"device=xpu: torch {torch.__version__} finds no XPU"),
        ("mps", 1, "cuda", "gloo", f"device=cuda: torch {torch.__version__} finds no CUDA"),
        ("none", 0, "auto", "nccl", "transport=nccl: carries nothing between CPUs; use gloo"),
        ("cuda", 8, "cpu", "nccl", "transport=nccl: carries nothing between CPUs; use gloo"),
        ("none", 0, "pretend", "nccl", "transport=nccl: carries nothing between CPUs; use gloo"),
        ("npu", 8, "npu", "gloo", "transport=gloo: carries nothing between npus; use auto"),
        ("npu", 8, "npu", "nccl", "transport=nccl: carries nothing between npus; use auto"),
        ("npu", 8, "auto", "nccl", "transport=nccl: carries nothing between npus; use auto"),
        ("npu", 3, "npu", "auto", "device=npu: 4 ranks cannot share 3 of them; use fewer"),
        ("xpu", 1, "xpu", "auto", "device=xpu: 4 ranks cannot share 1 of them; use fewer"),
    ],
)
def test_four_ranks_are_refused_a_placement_that_is_impossible(
    machine: Machine, kind: str, count: int, device: str, transport: str, why: str
) -> None:
    machine(kind, count)
    with pytest.raises(ImpossiblePlacement) as refused:
        choose_placement(device, transport, 4)
    assert str(refused.value).startswith(why)


def test_a_transport_that_torch_was_built_without_is_not_chosen(machine: Machine) -> None:
    machine("cuda", 8, built=False)
    assert choose_placement("cuda", "auto", 4).transport == "gloo"
    with pytest.raises(
        ImpossiblePlacement, match=r"transport=nccl: torch .* is without it; use gloo"
    ):
        choose_placement("cuda", "nccl", 4)
    machine("npu", 8, built=False)
    with pytest.raises(
        ImpossiblePlacement, match=r"device=npu: torch .* is without hccl; use cpu"
    ):
        choose_placement("npu", "auto", 4)


def test_ranks_share_a_gpu_over_nccl_only_if_nccl_allows_it(machine: Machine) -> None:
    machine("cuda", 1, refuses="which NCCL 2.29 refuses")
    assert choose_placement("cuda", "auto", 2).transport == "gloo"
    with pytest.raises(ImpossiblePlacement) as refused:
        choose_placement("cuda", "nccl", 2)
    assert str(refused.value) == (
        "transport=nccl: 2 ranks share cuda:0, which NCCL 2.29 refuses; use gloo"
    )
    # A single rank shares nothing.
    assert choose_placement("cuda", "nccl", 1).transport == "nccl"


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 11])
def test_test_workers_use_all_devices_evenly(count: int, workers: int) -> None:
    shares = [set(share(count, worker, workers)) for worker in range(workers)]
    assert set().union(*shares) == set(range(count))
    used = [sum(index in each for each in shares) for index in range(count)]
    # Each worker has a device, and devices differ by at most one worker.
    assert all(shares)
    assert max(used) == -(-workers // count)
    assert max(used) - min(used) <= 1
    # The worker that replaces a crashed one has a higher number.
    assert set(share(count, workers, workers)) == shares[0]


def test_the_ranks_of_a_test_worker_stay_on_its_devices(machine: Machine) -> None:
    machine("cuda", 8)
    assert str(choose_placement("cuda", "auto", 2, worker=1, workers=2)) == "cuda:4,cuda:5 nccl 1"
    assert str(choose_placement("cuda", "auto", 4, worker=3, workers=4)) == "cuda:6,cuda:7 gloo 2"
    machine("cuda", 2)
    assert str(choose_placement("cuda", "auto", 4, worker=4, workers=5)) == "cuda:0 gloo 12"


def test_a_command_gets_only_the_options_that_differ_from_its_own_choice(machine: Machine) -> None:
    rank_options.cache_clear()
    machine("cuda", 4)
    assert choose_placement("auto", "auto", 4).transport == "nccl"
    assert rank_options(RanOn("cuda", "nccl", 4, DEADLINE)) == ()
    on_cpu = RanOn("cpu", "gloo", 4, 60.0)
    assert rank_options(on_cpu) == ("--device", "cpu", "--deadline", "60")
    assert rank_options(RanOn("cuda", "gloo", 4, DEADLINE)) == ("--transport", "gloo")
    rank_options.cache_clear()


def test_every_device_can_be_requested_by_name() -> None:
    assert tuple(TRANSPORTS) == needs.DEVICES
    for device in ("auto", "cpu", *TRANSPORTS, "pretend"):
        assert options_of("check", "--device", device).device == device


def test_the_command_line_refuses_an_impossible_transport_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--device", "cpu", "--transport", "nccl"]) == 2
    message = "harness: --transport=nccl: carries nothing between CPUs; use gloo\n"
    assert capsys.readouterr().err == message


def test_the_plugin_refuses_an_impossible_transport_in_one_sentence(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("def test_a(harness_pool): ...\ndef test_b(harness_pool): ...")
    result = pytester.runpytest_inprocess("--harness-device", "cpu", "--harness-transport", "nccl")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["--harness-transport=nccl: carries nothing between CPUs; *"])


def test_doctor_shows_which_transports_an_accelerator_has(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = "which NCCL 2.29 refuses and NCCL 2.30 may not"
    monkeypatch.setattr("harness.doctor.why_ranks_cannot_share", lambda *_: refuses)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    machine("cuda", 2)
    found = examine()
    assert found["devices"]["cuda"]["why"] == "2 found"
    assert not found["devices"]["npu"]["usable"]
    assert found["transports"]["nccl"] == {"usable": True, "why": "for up to 2 ranks"}
    assert found["transports"]["hccl"] == {"usable": False, "why": "no NPU device"}
    assert found["transports"]["nccl on a shared GPU"] == {
        "usable": False, "why": f"2 ranks share a GPU, {refuses}",
    }  # fmt: skip
    machine("npu", 4)
    found = examine()
    assert found["devices"]["npu"]["why"] == "4 found"
    assert found["transports"]["hccl"]["usable"]
    assert not found["transports"]["nccl"]["usable"]
