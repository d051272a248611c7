"""The release without each of its listed bugs."""

from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from harness.candidates.published.library import Mend


def attention_that_exchanges() -> AbstractContextManager[Any]:
    """While this lasts, a model that ranks share has the attention that the library patches."""
    from harness.candidates.published.areal.library import fsdp_engine

    released = fsdp_engine.apply_monkey_patch

    def apply(model: Any, ulysses_sp_size: int, **options: Any) -> None:
        if ulysses_sp_size > 1:
            model.set_attn_implementation("flash_attention_2")
        released(model=model, ulysses_sp_size=ulysses_sp_size, **options)

    return patch.object(fsdp_engine, "apply_monkey_patch", apply)


def mask_of_packed_rows() -> AbstractContextManager[Any]:
    """While this lasts, transformers gets no masks, and makes a causal mask of each row itself."""
    from harness.candidates.published.areal.library import fsdp_engine

    released = fsdp_engine.FSDPEngine._prepare_mb_list

    def prepare(self: Any, input_: dict[str, Any]) -> Any:
        batches = released(self, input_)
        for batch in (*batches.mbs, *batches.padded_mbs):
            batch["attention_mask"] = None
        return batches

    return patch.object(fsdp_engine.FSDPEngine, "_prepare_mb_list", prepare)


def statistics_alike() -> AbstractContextManager[Any]:
    """While this lasts, a rank without statistics that another has takes part with zeros."""
    from harness.candidates.published.areal.library import stats_tracker

    tracker = stats_tracker.DistributedStatsTracker
    released = tracker.export

    def export(
        self: Any, key: str | None = None, reduce_group: Any = None, reset: Any = True
    ) -> Any:
        if key is None and reduce_group is not None:
            own = {
                name: (self.reduce_types[name], self.denominators.get(name)) for name in self.stats
            }
            by_rank: list[Any] = [None] * reduce_group.size()
            torch.distributed.all_gather_object(by_rank, own, group=reduce_group)
            for recorded in by_rank:
                for name, (kind, denominator) in recorded.items():
                    if name not in self.stats:
                        _take_part(self, name, kind, denominator)
        return released(self, key, reduce_group, reset)

    def _take_part(self: Any, name: str, kind: Any, denominator: str | None) -> None:
        self.reduce_types[name] = kind
        if denominator is not None:
            self.denominators[name] = denominator
        nothing = torch.zeros(1, dtype=torch.float32 if denominator else torch.bool)
        self.stats[name] = [] if kind == stats_tracker.ReduceType.SCALAR else [nothing]

    return patch.object(tracker, "export", export)


def norms_over_replicas() -> AbstractContextManager[Any]:
    """While this lasts, norms of a whole batch sum over replicas, which have different rows."""
    from harness.candidates.published.areal.library import ppo_actor

    released = ppo_actor.PPOActor.__init__

    def init(self: Any, config: Any, engine: Any) -> None:
        released(self, config, engine)
        for name in ("reward_norm", "adv_norm"):
            if (norm := getattr(self, name)) is not None:
                setattr(self, name, over_replicas(norm, engine))

    def over_replicas(norm: Any, engine: Any) -> Any:
        # An engine has groups only once it is initialized.
        return lambda *of: norm(*of, reduce_group=engine.data_parallel_group)

    return patch.object(ppo_actor.PPOActor, "__init__", init)


def versions_of_targets() -> AbstractContextManager[Any]:
    """While this lasts, versions stand where log-probabilities and the mask of targets do."""
    from harness.candidates.published.areal.library import ppo_actor

    released = ppo_actor.PPOActor._compute_advantages

    def compute(self: Any, data: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = released(self, data)
        return made | {"versions": made["versions"].roll(-1, -1)}

    return patch.object(ppo_actor.PPOActor, "_compute_advantages", compute)


def k3_as_documented() -> AbstractContextManager[Any]:
    """While this lasts, rejection by kl_k3 has the policy that acted as the one that acted."""
    from harness.candidates.published.areal.library import functional

    released = functional.KLEstimator._compute_approx_kl

    def compute(log_probs: Any, log_probs_base: Any, kl_estimator: str, **options: Any) -> Any:
        of = (log_probs, log_probs_base)
        return released(*(of[::-1] if kl_estimator == "k3" else of), kl_estimator, **options)

    mended = SimpleNamespace(_compute_approx_kl=compute)
    return patch.object(functional, "KLEstimator", mended)


MENDS: dict[str, Mend] = {
    "stays-local": attention_that_exchanges,
    "sdpa-rows-leak": mask_of_packed_rows,
    "stats-out-of-step": statistics_alike,
    "norms-count-shared-rows": norms_over_replicas,
    "loglinear-versions-not-rolled": versions_of_targets,
    "kl-k3-of-the-inverse-ratio": k3_as_documented,
}
