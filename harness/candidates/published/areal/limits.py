"""Cases that areal refuses, or that its loss cannot express."""

from harness.candidates.published.library import Limit
from harness.candidates.published.wiring import limits
from harness.case import Case

# The engine has one loss, and computes log-probabilities in fp32.
_ENGINE = "dtype=fp32 loss=token-mean model=qwen2,qwen3 ranks=all"


def engine(case: Case) -> str | None:
    """Refuse what the engine fails on, loudly, before it trains."""
    rows = min(len(case.rows[replica :: case.dp]) for replica in range(case.dp))
    return limits.every_wiring(case) or limits.first(
        case.dtype != "fp32" and f"dtype={case.dtype}: it computes log-probabilities in fp32",
        case.loss != "token-mean" and f"loss={case.loss}: its loss is a mean over tokens",
        case.model == "llama"
        and "model=llama: it hands over a dict as mask, which this model cannot read",
        case.heads % case.sp != 0 and "heads: must be divisible by sp",
        case.kv_heads % case.sp != 0
        and case.sp % case.kv_heads != 0
        and "kv heads: must divide sp, or sp must divide them",
        rows < case.micro_batches and "micro: a replica has fewer rows than micro-batches",
        not limits.has_targets(case) and "no target: it refuses such a batch",
    )


def full(case: Case) -> str | None:
    """Refuse what the engine refuses, and windows."""
    return engine(case) or limits.first(case.window is not None and "window: not with this kernel")


LIMITS: dict[str, Limit] = {"sft": engine, "sft-sdpa": full}
STATED = {"sft": _ENGINE, "sft-sdpa": f"{_ENGINE} window=none"}
