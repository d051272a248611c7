"""Lets a script beside it import `harness` and `properties`, whatever Python it runs in."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
