"""Arguments and a template as `swift rlhf` makes them."""

import tempfile
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import transformers
from accelerate import PartialState
from accelerate.utils import DistributedType

from harness.candidates.published.ms_swift import released

# What the release's own arguments have beside those of transformers, at their defaults.
OF_SWIFT = {
    "callbacks": [],
    "check_model": False,
    "optimizer": None,
    "resume_only_model": False,
    "router_aux_loss_coef": 0.0,
    "tuner_type": "full",
    "use_logits_to_keep": None,
}


def arguments(micro_batches: int, of_trainer: Mapping[str, Any]) -> Any:
    """Return the arguments of a trainer that takes one step on all ranks there are."""
    made = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        use_cpu=True,
        report_to="none",
        gradient_accumulation_steps=micro_batches,
        remove_unused_columns=False,
        disable_tqdm=True,
        log_level="error",
    )
    vars(made).update(OF_SWIFT, **of_trainer)
    # The ranks are there already, and no variable of a launcher tells of them.
    backend = ("gloo", DistributedType.MULTI_CPU)
    with patch.object(PartialState, "_prepare_backend", lambda *_, **__: backend):
        assert made.device.type == "cpu"
    return made


def template(mode: str, sp: int, *, packed: bool) -> Any:
    """Return the template of a model of text."""
    meta = SimpleNamespace(
        agent_template=None,
        check_system=lambda _: None,
        is_thinking=False,
        non_thinking_prefix="",
    )
    made = released.Template(
        None,
        meta,
        truncation_strategy="left",
        padding_free=packed,
        sequence_parallel_size=sp,
    )
    made.tokenizer = SimpleNamespace(pad_token_id=PAD)
    made.set_mode(mode)
    return made


# The id of padding, which no token has where ids tell tokens apart.
PAD = 0
