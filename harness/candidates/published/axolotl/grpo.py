"""Steps of TRL's GRPO on gathered logits, where each token's advantage is one.

The gradient is then that of the mean loss of the generated tokens.

Legend: B rows, P tokens of a prompt, C tokens of a completion, L a rank's tokens.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.candidates.protocol import Rank
from harness.candidates.published.axolotl import library
from harness.candidates.published.axolotl.model import Model
from harness.candidates.published.wiring.gradients import reduce
from harness.candidates.published.wiring.rows import IGNORED, PADDING, Padded
from harness.case import Case

Batch = dict[str, Tensor]
_LOGPS, _LOSS = library.grpo_methods()


def batch_of(case: Case, padded: Padded) -> Batch:
    """Pad prompts on the left and completions on the right; a prompt ends before a target."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for row in padded.rows:
        # Without a target the prompt is the first token.
        first = int(row.targets_T.int().argmax()) if row.targets_T.any() else 1
        columns = {
            "ids": row.ids_T,
            "mask": torch.ones_like(row.ids_T),
            "tool_mask": row.targets_T.int(),
            "tokens": row.tokens_T,
        }
        for name, column in columns.items():
            parts[name].append((column[:first], column[first:]))
    fillings = {"ids": case.pad_id, "mask": 0, "tool_mask": 0, "tokens": PADDING}
    batch = {}
    for name, filling in fillings.items():
        before, after = zip(*parts[name], strict=True)
        batch[f"prompt_{name}"] = table(before, filling, "left")
        batch[f"completion_{name}"] = table(after, filling, "right")
    return {
        **{key: value for key, value in batch.items() if not key.endswith("tool_mask")},
        # TRL learns nothing from tokens of tools; here these are all tokens that are no targets.
        "tool_mask": batch["completion_tool_mask"],
        "advantages": torch.ones(len(padded.ids_BS)),
    }


def table(rows: tuple[Tensor, ...], filling: int, side: str) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), True, filling, side)


class Trainer:
    """A trainer with only what the released methods of `GRPOTrainer` read."""

    aux_loss_enabled = use_vllm = _entropy_bonus_enabled = False
    top_entropy_quantile = temperature = 1.0
    beta = epsilon_low = epsilon_high = 0.0
    off_policy_mask_threshold = None
    importance_sampling_level = "token"
    model_kwarg_keys = frozenset({"logits_to_keep"})
    args = SimpleNamespace(delta=None)
    accelerator = SimpleNamespace(gather=lambda value: value, reduce=lambda value, **_: value)

    def __init__(self, case: Case, rank: Rank, model: Model, loss_type: str) -> None:
        self.case, self.rank, self.watched, self.model = case, rank, model, model.module
        self.loss_type = loss_type
        self.current_gradient_accumulation_steps = case.micro_batches
        self._metrics: Any = defaultdict(lambda: defaultdict(list))

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        logps_and_entropies = _LOGPS(self, *args, **kwargs)
        self.nll_BC = -logps_and_entropies[0]
        return logps_and_entropies

    def step(self, batches: list[Batch]) -> Tensor:
        """Run one step up to its gradients -> the mean loss, which TRL does not log."""
        logged = torch.zeros(())
        for batch in batches:
            self.watched.tokens_BS = torch.cat(
                (batch["prompt_tokens"], batch["completion_tokens"]), 1
            )
            loss = _LOSS(self, self.model, batch)
            self.emit_losses(batch)
            loss.backward()
            logged = logged + self.mean(batch)
        reduce(self.watched.parameters, self.rank.world, mean=True)
        torch.distributed.all_reduce(logged, group=self.rank.world)
        return logged / self.case.ranks

    def mean(self, batch: Batch) -> Tensor:
        """Return this batch's part of the mean loss: of rows' means if `grpo`, else of tokens."""
        nll_BC, mask_BC = self.nll_BC.detach(), batch["tool_mask"]
        dims = -1 if self.loss_type == "grpo" else (0, 1)
        means: Tensor = (nll_BC * mask_BC).sum(dims) / mask_BC.sum(dims).clamp(min=1)
        mean: Tensor = means.mean() / self.case.micro_batches
        return mean

    def emit_losses(self, batch: Batch) -> None:
        """Emit losses and labels of this rank's tokens; every rank has gathered all losses."""
        start = batch["prompt_ids"].shape[1] - 1
        # Completions are predicted from the tokens before them.
        tokens_BC, targets_BC = self.watched.tokens_BS[:, start:-1], batch["tool_mask"].bool()
        where, tokens_L = targets_BC.nonzero(as_tuple=True), self.watched.tokens_L
        nll, labels = torch.zeros(self.case.tokens), torch.full((self.case.tokens,), IGNORED)
        nll[tokens_BC[where]] = self.nll_BC.detach()[where]
        labels[tokens_BC[where]] = batch["completion_ids"][where]
        real_L = tokens_L != PADDING
        emit = self.watched.emit
        emit("nll", nll[tokens_L].where(real_L, 0), tokens_L)
        emit("labels", labels[tokens_L].where(real_L, IGNORED), tokens_L)
