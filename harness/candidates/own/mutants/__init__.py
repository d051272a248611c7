"""Real bugs, each reduced to one step of the native candidate; a module for each stage."""

import importlib

from harness.candidates.bank import MUTANTS, STAGES

_modules = [importlib.import_module(f"{__name__}.{stage}") for stage in STAGES]

BANK = MUTANTS
# Entries of the catalogue that no mutant stands for, and why.
LEFT_OUT: dict[str, str] = {}
for _module in _modules:
    LEFT_OUT |= _module.LEFT_OUT

__all__ = ["BANK", "LEFT_OUT"]
