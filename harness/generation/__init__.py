"""Cases: how they are drawn, and the situations that they must reach."""

from harness.generation.drawing import generate
from harness.generation.strategies import cases, steer

__all__ = ["cases", "generate", "steer"]
