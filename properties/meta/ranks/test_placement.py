"""How a rank settles on its device, which here only notes what is asked of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from harness.ranks.placement import MEETING, PLACEMENT, Placement, settle
from harness.ranks.pool import RankPool

Settled = Callable[[str, int], dict[str, Any]]


def test_a_placement_reads_as_it_was_written() -> None:
    placement = Placement(("cuda:2", "cuda:3"), "nccl", 2)
    assert Placement.read(str(placement)) == placement
    assert placement.device == "cuda"


@pytest.mark.parametrize(
    ("devices", "hardware"),
    [(("cpu",), "cpu"), (("pretend",), "cpu"), (("cuda:2", "cuda:3"), "cuda:2")],
)
def test_plain_training_beside_ranks_is_computed_on_hardware_of_theirs(
    devices: tuple[str, ...], hardware: str
) -> None:
    assert (
        Placement(devices).computes_on == RankPool(1, Placement(devices)).computes_on == hardware
    )


def test_only_ranks_that_share_a_gpu_over_nccl_are_told_how() -> None:
    def told(transport: str, sharing: int) -> dict[str, str]:
        placement = Placement(("cuda:0",), transport, sharing)
        environment = placement.environment()
        assert environment.pop(PLACEMENT) == str(placement)
        return environment

    assert told("nccl", 2) == {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": "1",
    }
    assert told("nccl", 1) == told("gloo", 2) == {}


# What a rank must not leave on.
FLAGS = [
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Settled]:
    """What a rank does when it settles, on a device that only notes what is asked of it."""

    def note(placement: str, local: int) -> dict[str, Any]:
        done: dict[str, Any] = {}
        module = SimpleNamespace(
            set_per_process_memory_fraction=lambda part, _: done.update(memory=part)
        )
        for place, name, said in (
            (torch, "get_device_module", lambda _: module),
            (torch, "set_num_threads", lambda count: done.update(threads=count)),
            (torch.accelerator, "set_device_index", lambda index: done.update(index=index)),
            (
                *(dist, "init_process_group"),
                lambda transport, device_id, **_: done.update(
                    transport=transport, bound=device_id
                ),
            ),
        ):
            monkeypatch.setattr(place, name, said)
        for name, value in ((PLACEMENT, placement), (MEETING, str(tmp_path / "ranks"))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RANK", str(local))
        monkeypatch.setenv("WORLD_SIZE", "8")
        done["device"] = settle(local)
        return done

    before = [getattr(*flag) for flag in FLAGS]
    for flag in FLAGS:
        setattr(*flag, True)
    yield note
    for flag, value in zip(FLAGS, before, strict=True):
        setattr(*flag, value)


def test_a_rank_takes_its_turn_and_its_part_of_the_memory(
    settled: Settled,
) -> None:
    device = torch.device("cuda", 3)
    assert settled("cuda:2,cuda:3 nccl 2", 5) == {
        "device": device, "index": 3, "memory": 0.5, "transport": "nccl", "bound": device,
    }  # fmt: skip


def test_over_gloo_no_device_is_bound_so_that_barriers_wait_on_the_host(
    settled: Settled,
) -> None:
    done = settled("cuda:0 gloo 4", 3)
    assert (done["device"], done["transport"], done["bound"]) == (
        torch.device("cuda", 0), "gloo", None,
    )  # fmt: skip


def test_on_the_cpu_nothing_is_asked_of_an_accelerator(
    settled: Settled,
) -> None:
    assert settled("cpu gloo 1", 1) == {
        "device": torch.device("cpu"), "threads": 1, "transport": "gloo", "bound": None,
    }  # fmt: skip


def test_a_rank_computes_in_the_precision_that_a_dtype_promises(settled: Settled) -> None:
    assert all(getattr(*flag) for flag in FLAGS)
    settled("cuda:0 gloo 1", 0)
    assert not any(getattr(*flag) for flag in FLAGS)
