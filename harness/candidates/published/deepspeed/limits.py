"""Cases that DeepSpeed, or its wiring, cannot run."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring.averages import micro_batches, other_average
from harness.candidates.published.wiring.limits import decoder, first, transformers
from harness.case import Case
from harness.case.stated import ALL_RANKS


def alst(case: Case) -> str | None:
    """Refuse what ALST for transformers models cannot run."""
    return transformers(case)


def recipe(case: Case) -> str | None:
    """Refuse losses other than the mean of the means of micro-batches."""
    return alst(case) or other_average(case, micro_batches, "the recipe averages micro-batches")


def attention(case: Case) -> str | None:
    """Refuse what `DistributedAttention` cannot run in the harness's own model."""
    return decoder(case) or first(
        case.kv_heads < case.sp
        and f"kv_heads={case.kv_heads} sp={case.sp}: it wants a kv head for every rank"
    )


def uneven(case: Case) -> str | None:
    """Refuse what `DistributedAttention` cannot run with one kv head more than the case has."""
    return decoder(case) or first(
        case.kv_heads + 1 < case.sp
        and f"kv_heads={case.kv_heads}+1 sp={case.sp}: it wants a kv head for every rank"
    )


def own_loss(case: Case) -> str | None:
    """Refuse what the library's own loss cannot compute."""
    return attention(case) or first(
        case.dtype != "fp32" and f"dtype={case.dtype}: its loss computes in fp32"
    )


LIMITS: dict[str, Limit] = {
    "attention": attention,
    "attention-seq-first": attention,
    "attention-uneven": uneven,
    "attention-uneven-seq-first": uneven,
    "attention-loss": own_loss,
    "alst": alst,
    "alst-packed": alst,
    "alst-flash": alst,
    "alst-flash-packed": alst,
    "recipe": recipe,
    "trainer": recipe,
    "engine-zero0": recipe,
    "engine-zero1": recipe,
    "engine-zero1-allreduce": recipe,
    "engine-zero2": recipe,
    "engine-zero2-allreduce": recipe,
    "engine-zero3": recipe,
    "engine-zero3-allreduce": recipe,
    "engine-zero2-tiled-mlp": recipe,
    "engine-zero3-tiled-mlp": recipe,
    "tiled-mlp": alst,
    "tiled-mlp-compute": alst,
    "tiled-loss-sum": alst,
    "tiled-loss-scaled": alst,
    "tiled-loss-mean": alst,
    "tiled-loss-beside": alst,
    "tiled-fused-sum": alst,
    "tiled-fused-scaled": alst,
    "tiled-fused-mean": alst,
    "tiled-fused-beside": alst,
}
STATED = {key: ALL_RANKS for key in LIMITS if key.startswith("engine")}
