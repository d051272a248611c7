"""Import this in a script of `ci/` to find `harness` and `properties` in any interpreter."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
