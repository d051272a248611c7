"""Mutants: steps with one bug each, which somebody had in a real project.

Most are native steps; each module has the bugs of one stage of a step. `recipes` has steps of
other models and losses, by the same stages. The keys B01 to B267 number a catalogue of bugs; a
letter follows if a bug takes several forms. `LEFT_OUT` has the reason for each number without a
mutant. `alone` lists for each native mutant a property that kills it without a reference, and
`called` the mutants that the diagnosis names otherwise than expected. docs/mutants.md shows the
docstrings of registered classes.
"""

import importlib

from harness.candidates.bank import MUTANTS, STAGES

_modules = [importlib.import_module(f"{__name__}.{stage}") for stage in STAGES]
_recipes = importlib.import_module(f"{__name__}.recipes")

BANK = MUTANTS
# The mutants that compute the harness's own model.
NATIVE = {key: mutant for key, mutant in BANK.items() if not mutant.trains}
# Numbers of the catalogue that have no mutant, and why.
LEFT_OUT: dict[str, str] = {}
for _module in (*_modules, *_recipes.STAGES):
    LEFT_OUT |= _module.LEFT_OUT

__all__ = ["BANK", "LEFT_OUT", "NATIVE"]
