"""Steps with one bug in what training puts around them, and steps that report what is around them.

The docstring of a class describes its bug.
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
    """Each rank has a share of the loss, and a wrapper averages it as if it were whole."""

    name = "shares-averaged"

    def loss_scale(self, _case: Case, _rank: Rank) -> float:
        return 1


class NeverReduces(GatherDialect):
    """The last micro-batch runs under `no_sync` as well."""

    name = "never-reduces"

    def gradient_sync(self, *arguments: Any, **_last: Any) -> AbstractContextManager[None]:
        return super().gradient_sync(*arguments, last=False)


class AmongReplicas(GatherDialect):
    """The wrapper gets the data-parallel group, so it does not average over peers."""

    name = "among-replicas"

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrap_model(model, case, replace(rank, world=rank.dp))


class ReducesAgain(LocalDialect):
    """After each micro-batch all gradients are reduced, even those that were reduced before."""

    name = "reduces-again"

    def gradient_sync(self, *arguments: Any, **_last: Any) -> AbstractContextManager[Any]:
        model, _, rank = arguments
        after = ExitStack()
        after.callback(self.reduce, model, rank)
        return after


class FirstLayerForAll(LocalDialect):
    """The compiled code of the first layer, with its weights, runs in all layers."""

    name = "first-layer-for-all"

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        model = super().wrap_model(model, case, rank)
        for layer in model.layers:
            layer.feed_forward = model.layers[0].feed_forward
        return model


class Watched(LocalDialect):
    """A correct step that emits how often it reduced, gathered, exchanged and compiled."""

    name = "watched"

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        from torch._dynamo import config
        from torch._dynamo.utils import counters

        before, started = counters["stats"]["unique_graphs"], time.time_ns()
        with config.patch(recompile_limit=2):
            super().run(case, rank, emit)
        emit("graphs", torch.tensor(counters["stats"]["unique_graphs"] - before))
        entries = [entry for entry in recorded() if entry["time_created_ns"] >= started]
        for kind in ("reduce", "gather", "all_to_all"):
            of_kind = (entry for entry in entries if kind in kind_of(entry))
            entered = [", ".join(entry.get("input_dtypes", [])) for entry in of_kind]
            for dtype in set(entered):
                emit(f"{kind} in {dtype}", torch.tensor(entered.count(dtype)))


class AlwaysReduces(Watched):
    """Without `no_sync` every micro-batch is reduced; this is correct and wastes time."""

    name = "always-reduces"

    def gradient_sync(self, *arguments: Any, **_last: Any) -> AbstractContextManager[None]:
        return super().gradient_sync(*arguments, last=True)


class SumsShort(Watched):
    """The wrapper sums half-precision gradients in half precision, not in fp32."""

    name = "sums-short"

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        if case.wrapper == "fsdp":
            fully_shard(model, mesh=DeviceMesh.from_group(rank.world, rank.device.type))
            return model
        return cast("Decoder", DistributedDataParallel(model, process_group=rank.world))


class SendsWide(SumsShort):
    """As `SumsShort`, and FSDP gathers parameters that are held in fp32 in fp32."""

    name = "sends-wide"

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrap_model(model.float(), case, rank)


class HeldShort(Watched):
    """Parameters are held in the dtype of the computation, not in fp32."""

    name = "held-short"

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrap_model(model, replace(case, mixed=False), rank)


class ComputedWide(Watched):
    """Parameters that are held in fp32 are also used in fp32, not in half precision."""

    name = "computed-wide"

    def model(self, case: Case, rank: Rank) -> Decoder:
        return Decoder(case, torch.float32, rank.device)

    def wrap_model(self, model: Decoder, case: Case, rank: Rank) -> Decoder:
        return super().wrap_model(model, replace(case, mixed=False), rank)


class Uncompiled(Watched):
    """torch.compile may give up silently, and its limit counts the graphs of earlier cases."""

    name = "uncompiled"

    def wrap_model(self, *arguments: Any) -> Decoder:
        compiled = torch.compile

        def lenient(*function: Any, fullgraph: bool, **options: Any) -> Any:
            return compiled(*function, fullgraph=not fullgraph, **options)

        with patch("torch.compiler.reset"), patch("torch.compile", lenient):
            return super().wrap_model(*arguments)


SHARES_AVERAGED, NEVER_REDUCES = SharesAveraged(), NeverReduces()
AMONG_REPLICAS, REDUCES_AGAIN = AmongReplicas(), ReducesAgain()
FIRST_LAYER_FOR_ALL = FirstLayerForAll()
WATCHED, ALWAYS_REDUCES, SUMS_SHORT = Watched(), AlwaysReduces(), SumsShort()
SENDS_WIDE = SendsWide()
HELD_SHORT, COMPUTED_WIDE, UNCOMPILED = HeldShort(), ComputedWide(), Uncompiled()
