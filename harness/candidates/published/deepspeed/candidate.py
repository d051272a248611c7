"""Steps of DeepSpeed: Ulysses attention, ALST, its engine and its tiled compute.

Each step imports its module when it first runs: releases before 0.17 have no ALST, but attention.
"""

import os
from functools import partial
from typing import Any

from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.library import Step
from harness.case import Case

# DeepSpeed reads this variable once, when it is imported.
ACCELERATOR = "DS_ACCELERATOR"
FLASH = "flash_attention_2"


def attention(case: Case, rank: Rank, emit: Emit, **options: Any) -> None:
    os.environ.setdefault(ACCELERATOR, "cpu")
    from harness.candidates.published.deepspeed.attention import step as run

    run(case, rank, emit, **options)


def alst(case: Case, rank: Rank, emit: Emit, **options: Any) -> None:
    os.environ.setdefault(ACCELERATOR, "cpu")
    from harness.candidates.published.deepspeed.alst import step as run

    run(case, rank, emit, **options)


def engine(case: Case, rank: Rank, emit: Emit, **options: Any) -> None:
    os.environ.setdefault(ACCELERATOR, "cpu")
    from harness.candidates.published.deepspeed.engine import step as run

    run(case, rank, emit, **options)


def tiled_mlp(case: Case, rank: Rank, emit: Emit, **options: Any) -> None:
    os.environ.setdefault(ACCELERATOR, "cpu")
    from harness.candidates.published.deepspeed.tiled import mlp_step as run

    run(case, rank, emit, **options)


def tiled_loss(case: Case, rank: Rank, emit: Emit, **options: Any) -> None:
    os.environ.setdefault(ACCELERATOR, "cpu")
    from harness.candidates.published.deepspeed.tiled import loss_step as run

    run(case, rank, emit, **options)


STEPS: dict[str, Step] = {
    "attention": partial(attention, batch_dim=0),
    "attention-seq-first": partial(attention, batch_dim=1),
    "attention-uneven": partial(attention, batch_dim=0, more=1),
    "attention-uneven-seq-first": partial(attention, batch_dim=1, more=1),
    "attention-loss": partial(attention, batch_dim=1, own_loss=True),
    "alst": partial(alst, loss="sum"),
    "alst-packed": partial(alst, loss="sum", packed=True),
    "alst-flash": partial(alst, loss="sum", core=FLASH),
    "alst-flash-packed": partial(alst, loss="sum", core=FLASH, packed=True),
    "recipe": partial(alst, loss="recipe"),
    "trainer": partial(alst, loss="trainer"),
    # Without ZeRO there is nothing to scatter.
    "engine-zero0": partial(engine, stage=0, scatter=True),
    "engine-zero1": partial(engine, stage=1, scatter=True),
    "engine-zero1-allreduce": partial(engine, stage=1, scatter=False),
    "engine-zero2": partial(engine, stage=2, scatter=True),
    "engine-zero2-allreduce": partial(engine, stage=2, scatter=False),
    "engine-zero3": partial(engine, stage=3, scatter=True),
    "engine-zero3-allreduce": partial(engine, stage=3, scatter=False),
    "engine-zero2-tiled-mlp": partial(tiled_mlp, stage=2, scatter=True, mlp="mlp"),
    "engine-zero3-tiled-mlp": partial(tiled_mlp, stage=3, scatter=True, mlp="mlp"),
    "tiled-mlp": partial(tiled_mlp, mlp="mlp"),
    "tiled-mlp-compute": partial(tiled_mlp, mlp="compute"),
    "tiled-loss-sum": partial(tiled_loss, loss="compute-sum"),
    "tiled-loss-scaled": partial(tiled_loss, loss="compute-scaled"),
    "tiled-loss-mean": partial(tiled_loss, loss="compute-mean"),
    "tiled-loss-beside": partial(tiled_loss, loss="compute-beside"),
    "tiled-fused-sum": partial(tiled_loss, loss="fused-sum"),
    "tiled-fused-scaled": partial(tiled_loss, loss="fused-scaled"),
    "tiled-fused-mean": partial(tiled_loss, loss="fused-mean"),
    "tiled-fused-beside": partial(tiled_loss, loss="fused-beside"),
}
