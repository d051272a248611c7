"""Every entry of DeepSpeed."""

import importlib
import os
from typing import TYPE_CHECKING, Any

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published import Step
from harness.case import Case

if TYPE_CHECKING:
    from collections.abc import Callable

# Read once, when DeepSpeed is first imported; all of this is wired for a CPU.
os.environ["DS_ACCELERATOR"] = os.environ.get("DS_ACCELERATOR", "cpu")


def of(name: str, **options: Any) -> Step:
    """`step` of the module beside this one, imported when it is first taken.

    Releases before 0.17 have no ALST, and still attention to be checked.
    """

    def step(case: Case, rank: Rank, emit: Emit) -> None:
        module = importlib.import_module(f"{__package__}.{name}")
        take: Callable[..., None] = module.step
        take(case, rank, emit, **options)

    return step


# Without ZeRO there is nothing to scatter.
STAGES = ((0, True), *((stage, scatter) for stage in (1, 2, 3) for scatter in (True, False)))
TILED = ("sum", "scaled", "mean", "beside")
FLASH = "flash_attention_2"

STEPS: dict[str, Step] = {
    "attention": of("attention", batch_dim=0),
    "attention-seq-first": of("attention", batch_dim=1),
    "attention-uneven": of("attention", batch_dim=0, more=1),
    "attention-uneven-seq-first": of("attention", batch_dim=1, more=1),
    "attention-loss": of("attention", batch_dim=1, own_loss=True),
    "alst": of("alst", loss="sum"),
    "alst-packed": of("alst", loss="sum", packed=True),
    "alst-flash": of("alst", loss="sum", core=FLASH),
    "alst-flash-packed": of("alst", loss="sum", core=FLASH, packed=True),
    "recipe": of("alst", loss="recipe"),
    "trainer": of("alst", loss="trainer"),
    **{
        f"engine-zero{stage}{'' if scatter else '-allreduce'}": of(
            "engine", stage=stage, scatter=scatter
        )
        for stage, scatter in STAGES
    },
    "engine-zero2-tiled-mlp": of("tiled", stage=2, scatter=True, mlp="mlp"),
    "engine-zero3-tiled-mlp": of("tiled", stage=3, scatter=True, mlp="mlp"),
    "tiled-mlp": of("tiled", mlp="mlp"),
    "tiled-mlp-compute": of("tiled", mlp="compute"),
    **{f"tiled-loss-{how}": of("tiled", loss=f"compute-{how}") for how in TILED},
    **{f"tiled-fused-{how}": of("tiled", loss=f"fused-{how}") for how in TILED},
}
