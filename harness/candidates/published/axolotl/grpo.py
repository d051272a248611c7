"""Steps of TRL's GRPO on gathered logits, where each token's advantage is one.

The gradient is then that of the mean loss of the tokens that were generated.

Legend: B rows, P tokens of a prompt, C of what was generated, L a rank's tokens.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.candidates.protocol import Rank
from harness.candidates.published.axolotl import library
from harness.candidates.published.axolotl.model import IGNORED, Seen, parameters
from harness.candidates.published.wiring.gradients import reduce
from harness.candidates.published.wiring.rows import PADDING, Padded
from harness.case import Case

Batch = dict[str, Tensor]
_LOGPS, _LOSS = library.grpo_methods()


def batch_of(case: Case, padded: Padded) -> Batch:
    """Prompts padded on the left, what was generated on the right; a prompt ends at a target."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for row, real in enumerate(padded.attended_BS.bool()):
        targets = padded.targets_BS[row][real]
        # Without a target the prompt is the first token.
        first = int(targets.int().argmax()) if targets.any() else 1
        columns = {
            "ids": padded.ids_BS[row][real],
            "mask": padded.attended_BS[row][real],
            "tool_mask": targets.int(),
            "tokens": padded.tokens_BS[row][real],
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
        # TRL learns nothing from tokens of tools; here these are all that are no targets.
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

    def __init__(self, case: Case, rank: Rank, seen: Seen, loss_type: str) -> None:
        self.case, self.rank, self.seen, self.model = case, rank, seen, seen.model
        self.loss_type = loss_type
        self.current_gradient_accumulation_steps = case.micro_batches
        self._metrics: Any = defaultdict(lambda: defaultdict(list))

    def _get_per_token_logps_and_entropies(self, *given: Any, **named: Any) -> Any:
        found = _LOGPS(self, *given, **named)
        self.nll_BC = -found[0]
        return found

    def step(self, batches: list[Batch]) -> Tensor:
        """One step up to its gradients -> the mean loss of completions, which TRL does not log."""
        logged = torch.zeros(())
        for batch in batches:
            self.seen.tokens_BS = torch.cat(
                (batch["prompt_tokens"], batch["completion_tokens"]), 1
            )
            loss = _LOSS(self, self.model, batch)
            self.tell(batch)
            loss.backward()
            logged = logged + self.mean(batch)
        reduce(parameters(self.seen), self.rank.world, mean=True)
        torch.distributed.all_reduce(logged, group=self.rank.world)
        return logged / self.case.ranks

    def mean(self, batch: Batch) -> Tensor:
        """This batch's part of the mean loss: of rows' means with `grpo`, else over all tokens."""
        nll_BC, mask_BC = self.nll_BC.detach(), batch["tool_mask"]
        dims = -1 if self.loss_type == "grpo" else (0, 1)
        means: Tensor = (nll_BC * mask_BC).sum(dims) / mask_BC.sum(dims).clamp(min=1)
        mean: Tensor = means.mean() / self.case.micro_batches
        return mean

    def tell(self, batch: Batch) -> None:
        """Emit losses and labels of this rank's tokens; every rank has gathered those of all."""
        start = batch["prompt_ids"].shape[1] - 1
        of_BC, targets_BC = self.seen.tokens_BS[:, start:-1], batch["tool_mask"].bool()
        where, numbers = targets_BC.nonzero(as_tuple=True), self.seen.tokens_L
        nll, labels = torch.zeros(self.case.tokens), torch.full((self.case.tokens,), IGNORED)
        nll[of_BC[where]] = self.nll_BC.detach()[where]
        labels[of_BC[where]] = batch["completion_ids"][where]
        real_L = numbers != PADDING
        emit = self.seen.emit
        emit("nll", nll[numbers].where(real_L, 0), numbers)
        emit("labels", labels[numbers].where(real_L, IGNORED), numbers)
