"""Folders that tests read from."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Files of candidates for tests, most of them wrong on purpose.
PLANTED = ROOT / "properties" / "planted"
