"""Cases: how they are drawn, and the situations that they must reach."""

from harness.generation.beyond import beyond
from harness.generation.drawing import drawn, generate
from harness.generation.strategies import cases, steer

__all__ = ["beyond", "cases", "drawn", "generate", "steer"]
