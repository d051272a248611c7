"""From a case and a candidate to a comparison."""

from harness.judge.judge import evaluate, evaluate_all, evaluate_traced, verdict_only

__all__ = ["evaluate", "evaluate_all", "evaluate_traced", "verdict_only"]
