"""How a rank takes its device, here with stubs that note what they are asked."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed as dist

from harness.rank_program.placement import MEETING, PLACEMENT, Placement, join_ranks
from harness.ranks.pool import RankPool

Settle = Callable[[str, int], dict[str, Any]]


def test_a_placement_survives_writing_and_reading() -> None:
    placement = Placement(("cuda:2", "cuda:3"), "nccl", 2)
    assert Placement.read(str(placement)) == placement
    assert placement.device == "cuda"


@pytest.mark.parametrize(
    ("devices", "hardware"),
    [(("cpu",), "cpu"), (("pretend",), "cpu"), (("cuda:2", "cuda:3"), "cuda:2")],
)
def test_plain_training_beside_ranks_runs_on_their_hardware(
    devices: tuple[str, ...], hardware: str
) -> None:
    assert (
        Placement(devices).computes_on == RankPool(1, Placement(devices)).computes_on == hardware
    )


def test_only_ranks_that_share_a_gpu_over_nccl_get_variables_for_it() -> None:
    def variables(transport: str, sharing: int) -> dict[str, str]:
        placement = Placement(("cuda:0",), transport, sharing)
        environment = placement.environment()
        assert environment.pop(PLACEMENT) == str(placement)
        return environment

    assert variables("nccl", 2) == {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": "1",
    }
    assert variables("nccl", 1) == variables("gloo", 2) == {}


# Shortcuts that a rank has to switch off.
FLAGS = [
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
]


@pytest.fixture
def settle_on_stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Settle]:
    """Let a rank settle on stubs; return what it asked of them."""

    def settle_rank(placement: str, local: int) -> dict[str, Any]:
        done: dict[str, Any] = {}
        module = SimpleNamespace(
            set_per_process_memory_fraction=lambda part, _: done.update(memory=part)
        )
        for owner, name, stub in (
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
            monkeypatch.setattr(owner, name, stub)
        for name, value in ((PLACEMENT, placement), (MEETING, str(tmp_path / "ranks"))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RANK", str(local))
        monkeypatch.setenv("WORLD_SIZE", "8")
        done["device"] = join_ranks(local)
        return done

    before = [getattr(*flag) for flag in FLAGS]
    for flag in FLAGS:
        setattr(*flag, True)
    yield settle_rank
    for flag, value in zip(FLAGS, before, strict=True):
        setattr(*flag, value)


def test_a_rank_takes_the_next_device_and_its_part_of_the_memory(
    settle_on_stubs: Settle,
) -> None:
    device = torch.device("cuda", 3)
    assert settle_on_stubs("cuda:2,cuda:3 nccl 2", 5) == {
        "device": device, "index": 3, "memory": 0.5, "transport": "nccl", "bound": device,
    }  # fmt: skip


def test_gloo_binds_no_device_so_that_barriers_wait_on_the_host(
    settle_on_stubs: Settle,
) -> None:
    done = settle_on_stubs("cuda:0 gloo 4", 3)
    assert (done["device"], done["transport"], done["bound"]) == (
        torch.device("cuda", 0), "gloo", None,
    )  # fmt: skip


def test_a_rank_on_the_cpu_uses_no_accelerator(
    settle_on_stubs: Settle,
) -> None:
    assert settle_on_stubs("cpu gloo 1", 1) == {
        "device": torch.device("cpu"), "threads": 1, "transport": "gloo", "bound": None,
    }  # fmt: skip


def test_a_rank_computes_in_the_full_precision_of_a_dtype(settle_on_stubs: Settle) -> None:
    assert all(getattr(*flag) for flag in FLAGS)
    settle_on_stubs("cuda:0 gloo 1", 0)
    assert not any(getattr(*flag) for flag in FLAGS)
