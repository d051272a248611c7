"""Candidates for comparisons of a step with itself at sp 1, where no ranks share a sequence.

Some refuse or fail at sp 1, some are wrong there as well, and some emit only a part of their
gradients, or hold gradients in more than one model. `properties/meta/judge/test_self_reference.py`
has what the harness must report of each.
"""

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LOCAL, LocalDialect
from harness.candidates.own.native.training import gradient_or_zeros
from harness.case import Case
from harness.reference import TORCH_DTYPES, Decoder


class Alone(LocalDialect):
    """The native step; a subclass changes what it refuses or emits at sp 1."""

    def supports(self, case: Case) -> str | None:
        return self.refusal(case) if case.sp == 1 else super().supports(case)

    def refusal(self, case: Case) -> str | None:
        return super().supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        LOCAL.run(case, rank, self.change_emit(emit) if case.sp == 1 else emit)

    def change_emit(self, emit: Emit) -> Emit:
        return emit


class Refuses(Alone):
    """It refuses every case without peers."""

    name = "refuses"

    def refusal(self, case: Case) -> str | None:  # noqa: ARG002 - whatever the case
        return "two ranks or more"


class Raises(Alone):
    """It fails without peers."""

    name = "raises"

    def change_emit(self, emit: Emit) -> Emit:  # noqa: ARG002 - none is used
        raise ValueError("no peers")


class TwiceTheLoss(LocalDialect):
    """It reports twice the loss, at any sp."""

    name = "twice-the-loss"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def doubled(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, 2 * tensor if key == "loss" else tensor, tokens)

        super().run(case, rank, doubled)


class TwiceEverything(LocalDialect):
    """Its gradients are twice as large as they should be, at any sp."""

    name = "twice-everything"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def doubled(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, 2 * tensor if key.startswith("grad.") else tensor, tokens)

        super().run(case, rank, doubled)


class DividedByReplicas(LocalDialect):
    """Gradients are a mean over replicas where they should be a sum."""

    name = "divided-by-replicas"

    def factor(self, case: Case) -> float:
        return 1 / case.dp

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def scaled(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            factor = self.factor(case) if key.startswith("grad.") else 1
            emit(key, tensor * factor, tokens)

        super().run(case, rank, scaled)


class TimesMicroBatches(DividedByReplicas):
    """Gradients are summed over micro-batches where they should be averaged."""

    name = "times-micro-batches"

    def factor(self, case: Case) -> float:
        return case.micro_batches


class Few(LocalDialect):
    """It emits only two of its gradients, at any sp."""

    name = "few"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def emit_two(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if not key.startswith("grad.") or key in ("grad.norm", "grad.embed"):
                emit(key, tensor, tokens)

        super().run(case, rank, emit_two)


class ClearsGradients(Few):
    """As `Few`, and it clears the gradients of all parameters at the end."""

    name = "clears-gradients"
    models: ClassVar[list[nn.Module]] = []

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        self.models.append(model)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, rank, emit)
        while self.models:
            self.models.pop().zero_grad()


class AsksForGradients(ClearsGradients):
    """As `ClearsGradients`, and gradients come from `torch.autograd.grad` instead of backward."""

    name = "asks-for-gradients"

    def model(self, case: Case, rank: Rank) -> Decoder:
        self.parameters = [*(model := super().model(case, rank)).parameters()]
        return model

    def backward(self, loss: Tensor) -> None:
        made = torch.autograd.grad(loss, self.parameters)
        for parameter, more in zip(self.parameters, made, strict=True):
            parameter.grad = gradient_or_zeros(parameter) + more


class EmitsTwice(LocalDialect):
    """It emits the gradients of matrices only, and that of a tied weight under both its names."""

    name, limits = "emits-twice", "tied=1 steps=1"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def emit_matrices(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if not key.startswith("grad.") or tensor.ndim > 1:
                emit(key, tensor, tokens)
            if key == "grad.embed":
                emit("grad.head", tensor, tokens)

        super().run(case, rank, emit_matrices)


class EmitsFused(LocalDialect):
    """It also emits the gradients of q, k and v joined in one tensor, and leaves some kinds out.

    If it leaves out q, k and v themselves, the joined tensor still covers them, but no norms.
    """

    def __init__(self, *, without: Collection[str], name: str) -> None:
        self.without, self.name = without, name

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        parts: list[Tensor] = []

        def emit_fused(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            kind = key.rpartition(".")[2]
            if kind not in self.without or not key.startswith("grad."):
                emit(key, tensor, tokens)
            if key.startswith("grad.") and kind in ("q", "k", "v"):
                parts.append(tensor)
            if len(parts) == 3:
                emit(f"{key}.fused", torch.cat(parts), None)
                parts.clear()

        super().run(case, rank, emit_fused)


class KeepsACopy(LocalDialect):
    """It keeps a copy of the model in fp32, which holds the same gradients."""

    name = "keeps-a-copy"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        dtype = torch.promote_types(TORCH_DTYPES[case.dtype], torch.float32)
        self.copy = Decoder(case, dtype, rank.device)
        super().run(case, rank, emit)

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        for copy, parameter in zip(self.copy.parameters(), model.parameters(), strict=True):
            copy.grad = gradient_or_zeros(parameter).to(copy.dtype)


class KeepsItsModel(LocalDialect):
    """It keeps the models of earlier runs, with their gradients."""

    name = "keeps-its-model"
    kept: ClassVar[list[nn.Module]] = []

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        self.kept.append(model)


class ZeroKeys(LocalDialect):
    """The gradients of the key weights are zero, at any sp."""

    name = "zero-keys"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def emit_zero_keys(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            factor = 0 if key.startswith("grad.") and key.endswith(".k") else 1
            emit(key, factor * tensor, tokens)

        super().run(case, rank, emit_zero_keys)


class InBf16(LocalDialect):
    """Its limits allow one dtype only."""

    name, limits = "in-bf16", "dtype=bf16"


class InTwoMicroBatches(LocalDialect):
    """Its limits demand two micro-batches."""

    name, limits = "in-two-micro-batches", "micro=2"


class OverAll(LocalDialect):
    """It needs all ranks that exist, as a step does that makes a group over all of them."""

    name, limits = "over-all", "ranks=all"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        assert dist.get_world_size() == case.ranks
        super().run(case, rank, emit)


class OverAllWrong(OverAll):
    """As `OverAll`, and its gradients are wrong where ranks share a sequence."""

    name = "over-all-wrong"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        if case.sp > 1:
            TWICE_EVERYTHING.run(case, rank, emit)
        else:
            super().run(case, rank, emit)


REFUSES = Refuses()
RAISES = Raises()
TWICE_THE_LOSS = TwiceTheLoss()
TWICE_EVERYTHING = TwiceEverything()
DIVIDED_BY_REPLICAS = DividedByReplicas()
TIMES_MICRO_BATCHES = TimesMicroBatches()
FEW = Few()
EMITS_TWICE = EmitsTwice()
KEEPS_A_COPY = KeepsACopy()
FUSED = EmitsFused(without=("q", "k", "v"), name="fused")
FUSED_FOR_NORMS = EmitsFused(without=("attn_norm", "mlp_norm"), name="fused-for-norms")
CLEARS_GRADIENTS = ClearsGradients()
ASKS_FOR_GRADIENTS = AsksForGradients()
KEEPS_ITS_MODEL = KeepsItsModel()
ZERO_KEYS = ZeroKeys()
IN_BF16 = InBf16()
IN_TWO_MICRO_BATCHES = InTwoMicroBatches()
OVER_ALL = OverAll()
OVER_ALL_WRONG = OverAllWrong()


class NowAndThen(LocalDialect):
    """Its first run of each case with sp above 1 is wrong, and every later run is right."""

    name = "now-and-then"
    cases_run: ClassVar[set[str]] = set()

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        first = case.sp > 1 and str(case) not in self.cases_run
        if case.sp > 1:
            self.cases_run.add(str(case))

        def doubled(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, 2 * tensor if first and key.startswith("grad.") else tensor, tokens)

        super().run(case, rank, doubled)


NOW_AND_THEN = NowAndThen()


class ShowsMore(LocalDialect):
    """It emits something that is neither a loss nor a gradient."""

    name = "shows-more"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        super().run(case, rank, emit)
        emit("metric.reward", torch.ones(()))


SHOWS_MORE = ShowsMore()


class RoundsSums(LocalDialect):
    """It rounds gradients to fp32 before it divides them by the number of targets."""

    def __init__(self, name: str, factor: float) -> None:
        super().__init__()
        # The factor of gradients where ranks share a sequence.
        self.name, self.factor = name, factor

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        targets = sum(len(row.supervised()) for row in case.rows)
        factor = self.factor if case.sp > 1 else 1.0

        def rounded(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if key.startswith("grad."):
                tensor = (factor * targets * tensor).float().double() / targets
            emit(key, tensor, tokens)

        super().run(case, rank, rounded)


ROUNDS_SUMS = RoundsSums("rounds-sums", 1.0)
ROUNDS_SUMS_WRONG = RoundsSums("rounds-sums-wrong", 1.001)
