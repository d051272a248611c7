"""Prove a sequence-parallel training step equal to plain training, or show where they part."""

# That line is also the first one of `harness --help`. A case runs through these packages in order:
#
# * `case` and `generation` describe and draw cases; `plan` says which rank holds which tokens.
# * `reference` computes plain training; `candidates` are the steps under test; `ranks` runs them
#   on rank processes, where `watch` records what they do; `trace` assembles what they emit.
# * `compare` judges a trace; `judge` leads a case from a job to its verdict; `diagnosis` names a
#   failure; `failure` shrinks, keeps and replays it; `report` shows it.
# * `campaign` judges many cases, on the pools of an `engine`. `golden`, `conformance` and
#   `detection` judge stored cases, published packages and known bugs.
# * `cli`, `commands`, `doctor` and `plugin` are what a user calls.
#
# pyproject.toml lists which package may import which.

__version__ = "0.1.0"
