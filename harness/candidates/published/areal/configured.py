"""What all engines of areal have in common here: groups, options, and how they begin."""

from contextlib import AbstractContextManager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch import distributed as dist

from harness.candidates.published.areal import library
from harness.case import LEARNING_RATE

NO_CLIPPING = 1e30


def options(
    dp: int, sp: int, *, attention: str, micro_batches: int, checkpoint: bool
) -> dict[str, Any]:
    """Return the options of a `TrainEngineConfig`."""
    return {
        "experiment_name": "harness",
        "trial_name": "harness",
        "path": "harness",
        "backend": f"fsdp:d{dp}c{sp}",
        "attn_impl": attention,
        "dtype": "float32",
        "mb_spec": library.arguments.MicroBatchSpec(n_mbs=micro_batches),
        "gradient_checkpointing": checkpoint,
        "optimizer": library.arguments.OptimizerConfig(
            type="sgd",
            lr=LEARNING_RATE,
            weight_decay=0.0,
            warmup_steps_proportion=0.0,
            gradient_clipping=NO_CLIPPING,
        ),
    }


def given(model: Any) -> AbstractContextManager[Any]:
    """While this lasts, an engine is made with a model's configuration, and loads none."""
    return patch.object(
        library.fsdp_engine.AutoConfig, "from_pretrained", lambda **_: model.config
    )


def initialize(engine: Any, dp: int, sp: int, place: tuple[int, int], steps: int) -> None:
    """Have an engine share and wrap its model; `place` is this rank's in dp and in sp."""
    shared = groups(dp, sp)
    if (shared["dp_rank"], dist.get_rank(shared["sp_group"])) != place:
        raise RuntimeError("areal numbers its ranks in another order")
    vars(engine).update(shared)
    with patch.object(library.fsdp_engine, "load_hf_tokenizer", lambda _: None):
        engine.initialize(None, library.fsdp_engine.FinetuneSpec(1, steps, 1))


@cache
def groups(dp: int, sp: int) -> dict[str, Any]:
    """Return the engine's groups over all ranks, made once: groups last as long as the process."""
    engine = object.__new__(library.fsdp_engine.FSDPEngine)
    engine.config = SimpleNamespace(backend=f"fsdp:d{dp}c{sp}")
    engine.create_process_group()
    return {name: value for name, value in vars(engine).items() if name != "config"}
