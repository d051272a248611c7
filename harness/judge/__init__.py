"""From a case and a candidate to a comparison."""

from harness.judge.diagnosed import diagnosed
from harness.judge.judge import (
    begin,
    evaluate,
    evaluate_all,
    evaluate_traced,
    held_to_mends,
    verdict_only,
)

__all__ = [
    "begin",
    "diagnosed",
    "evaluate",
    "evaluate_all",
    "evaluate_traced",
    "held_to_mends",
    "verdict_only",
]
