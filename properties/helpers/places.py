"""Where things are that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
# Files of candidates that are there to be judged, most of them wrong on purpose.
PLANTED = ROOT / "properties" / "planted"
