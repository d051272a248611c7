"""The native step with one thing wrong around it, and a probe of what is around it.

Each docstring of a mutant is the bug in a sentence.
"""

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch.nn.parallel import DistributedDataParallel

from harness.candidates import Emit, Rank
from harness.candidates.own.native import GatherDialect, LocalDialect
from harness.case import Case
from harness.reference import Decoder
from harness.watch.flight_recorder import kind_of, recorded


class SharesAveraged(LocalDialect):
    """Each rank has a share of the loss, and a wrapper averages as if it were whole."""

    name = "shares-averaged"

    def scale(self, _case: Case, _rank: Rank) -> float:
        return 1


class NeverReduces(GatherDialect):
    """The last micro-batch, too, is under `no_sync`."""

    name = "never-reduces"

    def accumulation(self, *given: Any, **_last: Any) -> AbstractContextManager[None]:
        return super().accumulation(*given, last=False)


class AmongReplicas(GatherDialect):
    """The wrapper is given the data-parallel group, and peers of a sequence are not averaged."""

    name = "among-replicas"

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrapped(model, case, replace(rank, world=rank.dp))


class ReducesAgain(LocalDialect):
    """After each micro-batch everything is reduced, what was reduced before as well."""

    name = "reduces-again"

    def accumulation(self, *given: Any, **_last: Any) -> AbstractContextManager[Any]:
        model, _, rank = given
        after = ExitStack()
        after.callback(self.reduce, model, rank)
        return after


class FirstLayerForAll(LocalDialect):
    """What was compiled for the first layer, with its weights, runs in all of them."""

    name = "first-layer-for-all"

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        model = super().wrapped(model, case, rank)
        for layer in model.layers:
            layer.feed_forward = model.layers[0].feed_forward
        return model


class Watched(LocalDialect):
    """Right, and tells how often it reduced, gathered and exchanged, and what was compiled."""

    name = "watched"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        from torch._dynamo import config
        from torch._dynamo.utils import counters

        before, began = counters["stats"]["unique_graphs"], time.time_ns()
        with config.patch(recompile_limit=2):
            super().run(case, rank, emit)
        emit("graphs", torch.tensor(counters["stats"]["unique_graphs"] - before))
        entries = [entry for entry in recorded() if entry["time_created_ns"] >= began]
        for kind in ("reduce", "gather", "all_to_all"):
            ours = (entry for entry in entries if kind in kind_of(entry))
            entered = [", ".join(entry.get("input_dtypes", [])) for entry in ours]
            for dtype in set(entered):
                emit(f"{kind} in {dtype}", torch.tensor(entered.count(dtype)))


class AlwaysReduces(Watched):
    """There is no `no_sync`: every micro-batch is reduced, and only the time is wasted."""

    name = "always-reduces"

    def accumulation(self, *given: Any, **_last: Any) -> AbstractContextManager[None]:
        return super().accumulation(*given, last=True)


class SumsShort(Watched):
    """Nobody tells the wrapper that gradients in half precision are to be summed in fp32."""

    name = "sums-short"

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        if case.wrapper == "fsdp":
            fully_shard(model, mesh=DeviceMesh.from_group(rank.world, rank.device.type))
            return model
        return cast("Decoder", DistributedDataParallel(model, process_group=rank.world))


class SendsWide(SumsShort):
    """Nobody tells FSDP either what parameters that are held in fp32 are computed with in."""

    name = "sends-wide"

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrapped(model.float(), case, rank)


class HeldShort(Watched):
    """Parameters are held in the dtype that they are computed with in."""

    name = "held-short"

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrapped(model, replace(case, mixed=False), rank)


class ComputedWide(Watched):
    """Parameters that are held in fp32 are computed with in fp32."""

    name = "computed-wide"

    def model(self, case: Case, rank: Rank) -> Decoder:
        return Decoder(case, torch.float32, rank.device)

    def wrapped(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrapped(model, replace(case, mixed=False), rank)


class Uncompiled(Watched):
    """torch.compile may give up in silence, and counts what it compiled in earlier cases."""

    name = "uncompiled"

    def wrapped(self, *given: Any) -> Decoder:
        compiled = torch.compile

        def lenient(*function: Any, fullgraph: bool, **options: Any) -> Any:
            return compiled(*function, fullgraph=not fullgraph, **options)

        with patch("torch.compiler.reset"), patch("torch.compile", lenient):
            return super().wrapped(*given)


SHARES_AVERAGED, NEVER_REDUCES = SharesAveraged(), NeverReduces()
AMONG_REPLICAS, REDUCES_AGAIN = AmongReplicas(), ReducesAgain()
FIRST_LAYER_FOR_ALL = FirstLayerForAll()
WATCHED, ALWAYS_REDUCES, SUMS_SHORT = Watched(), AlwaysReduces(), SumsShort()
SENDS_WIDE = SendsWide()
HELD_SHORT, COMPUTED_WIDE, UNCOMPILED = HeldShort(), ComputedWide(), Uncompiled()
