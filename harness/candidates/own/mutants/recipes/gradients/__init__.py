"""Bugs in gradients: in what is handed back, and in how those of ranks become one."""

from harness.candidates.own.mutants.recipes.gradients import layers, reduced

__all__ = ["LEFT_OUT", "layers", "reduced"]

LEFT_OUT: dict[str, str] = {
    "B194": "no recipe has adapters, whose output could be reduced again",
    "B195": "the norm of gradients is not compared, and no parameter of a recipe is frozen",
}
