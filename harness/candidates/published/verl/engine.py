"""verl's current SFT step: the methods of its FSDP engine, without FSDP.

The methods are lifted out of their module, which imports ray, peft and hydra.
"""

from contextlib import contextmanager, nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any, ContextManager  # noqa: UP035 - lifted code uses this name

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils, torch_functional
from verl.utils.dataset.dataset_utils import DatasetPadMode

from harness import huggingface
from harness.candidates.protocol import Emit, Rank
from harness.candidates.published.verl.library import gather_outputs_and_unpad, own_tokens, ulysses
from harness.candidates.published.wiring.emitting import emit_inputs, emit_losses
from harness.candidates.published.wiring.packages import folder, lifted
from harness.candidates.published.wiring.rows import micro_batches
from harness.case import Case

WORKERS = folder("verl") / "workers"
ENGINE = WORKERS / "engine" / "fsdp" / "transformer_impl.py"

METHODS = (
    *("FSDPEngine._get_packed_pad_size", "FSDPEngine._gather_and_unpad_packed"),
    *("FSDPEngine._gradient_sync_context", "FSDPEngine.forward_backward_batch"),
    *("FSDPEngineWithLMHead.prepare_model_inputs", "FSDPEngineWithLMHead.prepare_model_outputs"),
    "FSDPEngineWithLMHead.forward_step",
)
HELPERS = ("_is_scalar_unit_temperature", "_scale_logits_by_temperature")
UTILITIES = (
    *("prepare_micro_batches", "postprocess_batch_func"),
    *("detach_tree", "pad_packed_inputs"),
)


@cache
def names_of_modules() -> dict[str, Any]:
    """Return the names that the methods and functions take from their modules."""
    names: dict[str, Any] = {
        "ActorConfig": object,
        "ContextManager": ContextManager,
        "DTensor": DTensor,
        "DatasetPadMode": DatasetPadMode,
        "TensorDict": TensorDict,
        "append_to_dict": lambda *_: None,
        "contextmanager": contextmanager,
        # There are no images.
        "extract_multi_modal_inputs": lambda _: {},
        "fsdp_version": lambda _: 0,
        "gather_outputs_and_unpad": gather_outputs_and_unpad,
        "get_device_id": lambda: torch.device("cpu"),
        "get_device_name": lambda: "cpu",
        "masked_sum": torch_functional.masked_sum,
        "nullcontext": nullcontext,
        "tu": tensordict_utils,
        "ulysses_pad_and_slice_inputs": ulysses.ulysses_pad_and_slice_inputs,
        "verl_F": torch_functional,
    }
    utilities = WORKERS / "engine" / "utils.py"
    names |= {name: lifted(utilities, name, names) for name in UTILITIES}
    names |= {name: lifted(ENGINE, name, names) for name in HELPERS}
    names["sft_loss"] = lifted(WORKERS / "utils" / "losses.py", "sft_loss", names)
    return names


def sft_loss(**kwargs: Any) -> Any:
    """Return the released loss; its first argument, a configuration, is never read."""
    return names_of_modules()["sft_loss"](None, **kwargs)


class Engine:
    """The released methods, and the attributes that these read."""

    def __init__(self, case: Case, rank: Rank, model: Any) -> None:
        self.case, self.rank, self.model = case, rank, model
        names = names_of_modules() | {"logprobs_from_logits": self.logprobs}
        self.methods = {name.partition(".")[2]: lifted(ENGINE, name, names) for name in METHODS}
        # The methods read these.
        self.module = self
        self.config = model.config
        self.pad_to_length = False
        self.use_ulysses_sp = case.sp > 1
        self.ulysses_sequence_parallel_size = case.sp
        self.engine_config = SimpleNamespace(use_no_sync_for_gradient_accumulation=True)
        self._autocast_dtype = torch.float32

    def __getattr__(self, name: str) -> Any:
        methods = vars(self).get("methods", {})
        if name not in methods:
            raise AttributeError(name)
        return methods[name].__get__(self)

    def step(self, data: TensorDict, emit: Emit) -> float:
        """Run forward and backward of all micro-batches -> this replica's logged loss."""
        self.emit = emit
        self.pending = iter(micro_batches(self.case, self.rank))
        losses: list[float] = self.forward_backward_batch(data, sft_loss)["loss"]
        return sum(losses)

    def get_data_parallel_size(self) -> int:
        return self.case.dp

    def get_data_parallel_group(self) -> Any:
        return self.rank.dp

    def __call__(self, **inputs: Any) -> Any:
        self.tokens = own_tokens(next(self.pending).packed.tokens_T, self.case.sp)
        emit_inputs(self.emit, inputs, self.tokens)
        with huggingface.watched(self.model, self.case, self.emit, self.tokens):
            return self.model(**inputs)

    def logprobs(self, logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        """Return the released log-probabilities, and emit them as losses."""
        log_probs: Tensor = torch_functional.logprobs_from_logits(logits, labels, **options)
        emit_losses(self.emit, -log_probs, labels, self.tokens)
        return log_probs


def batch(case: Case, rank: Rank, *, first_tokens: bool) -> TensorDict:
    """Return the rows of a replica as the collator passes them on, jagged."""
    numbers = range(rank.dp_index, len(case.rows), case.dp)
    ids, positions, masks = [], [], []
    for number in numbers:
        bits = [int(bit) for bit in case.rows[number].mask]
        ids.append(torch.tensor(case.ids_of(number)))
        positions.append(torch.arange(len(bits)))
        masks.append(torch.tensor(bits if first_tokens else [0, *bits[1:]]))
    columns = {"input_ids": ids, "position_ids": positions, "loss_mask": masks}
    data: TensorDict = tensordict_utils.get_tensordict(
        {
            name: torch.nested.as_nested_tensor(rows, layout=torch.jagged)
            for name, rows in columns.items()
        },
        {
            "micro_batch_size_per_gpu": len(numbers) // case.micro_batches,
            "temperature": 1.0,
            "use_dynamic_bsz": False,
        },
    )
    return data
