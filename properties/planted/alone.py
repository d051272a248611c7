"""Steps of which something is to be said at sp 1, where nobody shares a sequence."""

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from harness.candidates import Emit, Rank
from harness.candidates.own.native import LOCAL, LocalDialect
from harness.candidates.own.native.training import gradient
from harness.case import Case
from harness.reference import TORCH_DTYPES, Decoder


class Alone(LocalDialect):
    """Native, and at sp 1 it does something else."""

    def supports(self, case: Case) -> str | None:
        return self.why(case) if case.sp == 1 else super().supports(case)

    def why(self, case: Case) -> str | None:
        return super().supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        LOCAL.run(case, rank, self.otherwise(emit) if case.sp == 1 else emit)

    def otherwise(self, emit: Emit) -> Emit:
        return emit


class Refuses(Alone):
    """It does not do without peers."""

    name = "refuses"

    def why(self, case: Case) -> str | None:  # noqa: ARG002 - whatever the case
        return "two ranks or more"


class Raises(Alone):
    """It fails without peers."""

    name = "raises"

    def otherwise(self, emit: Emit) -> Emit:  # noqa: ARG002 - none is used
        raise ValueError("no peers")


class TwiceTheLoss(LocalDialect):
    """Its log shows twice the loss, whatever sp is."""

    name = "twice-the-loss"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def doubled(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, 2 * tensor if key == "loss" else tensor, tokens)

        super().run(case, rank, doubled)


class TwiceEverything(LocalDialect):
    """Gradients are twice what they should be, whatever sp is."""

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
    """Gradients are summed over micro-batches that are whole each."""

    name = "times-micro-batches"

    def factor(self, case: Case) -> float:
        return case.micro_batches


class Few(LocalDialect):
    """It shows two gradients of all that it has, whatever sp is."""

    name = "few"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def of_two(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if not key.startswith("grad.") or key in ("grad.norm", "grad.embed"):
                emit(key, tensor, tokens)

        super().run(case, rank, of_two)


class ClearsGradients(Few):
    """The same, and at the end no parameter has a gradient."""

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
    """The same, and backward never put them into parameters."""

    name = "asks-for-gradients"

    def model(self, case: Case, rank: Rank) -> Decoder:
        self.parameters = [*(model := super().model(case, rank)).parameters()]
        return model

    def backward(self, loss: Tensor) -> None:
        made = torch.autograd.grad(loss, self.parameters)
        for parameter, more in zip(self.parameters, made, strict=True):
            parameter.grad = gradient(parameter) + more


class EmitsTwice(LocalDialect):
    """It emits matrices alone, and a tied weight under both its names."""

    name, limits = "emits-twice", "tied=1 steps=1"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def of_matrices(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            if not key.startswith("grad.") or tensor.ndim > 1:
                emit(key, tensor, tokens)
            if key == "grad.embed":
                emit("grad.head", tensor, tokens)

        super().run(case, rank, of_matrices)


class EmitsFused(LocalDialect):
    """It emits queries, keys and values as one as well; so it may leave them out, or not norms."""

    def __init__(self, *, without: Collection[str], name: str) -> None:
        self.without, self.name = without, name

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        parts: list[Tensor] = []

        def fused(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            kind = key.rpartition(".")[2]
            if kind not in self.without or not key.startswith("grad."):
                emit(key, tensor, tokens)
            if key.startswith("grad.") and kind in ("q", "k", "v"):
                parts.append(tensor)
            if len(parts) == 3:
                emit(f"{key}.fused", torch.cat(parts), None)
                parts.clear()

        super().run(case, rank, fused)


class KeepsACopy(LocalDialect):
    """A copy of the model in fp32 holds the same gradients."""

    name = "keeps-a-copy"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        dtype = torch.promote_types(TORCH_DTYPES[case.dtype], torch.float32)
        self.copy = Decoder(case, dtype, rank.device)
        super().run(case, rank, emit)

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        for copy, parameter in zip(self.copy.parameters(), model.parameters(), strict=True):
            copy.grad = gradient(parameter).to(copy.dtype)


class KeepsItsModel(LocalDialect):
    """The model of another step stays, with its gradients."""

    name = "keeps-its-model"
    kept: ClassVar[list[nn.Module]] = []

    def reduce(self, model: Decoder, rank: Rank) -> None:
        super().reduce(model, rank)
        self.kept.append(model)


class ZeroKeys(LocalDialect):
    """The gradients of the weights of keys are zero, whatever sp is."""

    name = "zero-keys"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def without_keys(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            factor = 0 if key.startswith("grad.") and key.endswith(".k") else 1
            emit(key, factor * tensor, tokens)

        super().run(case, rank, without_keys)


class InBf16(LocalDialect):
    """It says that it is for one dtype only."""

    name, limits = "in-bf16", "dtype=bf16"


class InTwoMicroBatches(LocalDialect):
    """It says that it needs two micro-batches."""

    name, limits = "in-two-micro-batches", "micro=2"


class OverAll(LocalDialect):
    """It makes a group of its own over all ranks."""

    name, limits = "over-all", "ranks=all"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        assert dist.get_world_size() == case.ranks
        super().run(case, rank, emit)


class OverAllWrong(OverAll):
    """And where a sequence is shared, its gradients are wrong."""

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
    """Its first run over several ranks of each case is wrong, and every later one is right."""

    name = "now-and-then"
    seen: ClassVar[set[str]] = set()

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        first = case.sp > 1 and str(case) not in self.seen
        if case.sp > 1:
            self.seen.add(str(case))

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
    """Its gradients are as exact as fp32, before they are divided by the number of targets."""

    def __init__(self, name: str, factor: float) -> None:
        super().__init__()
        # Where ranks share a sequence.
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
