"""In which run a failure was seen, and on what."""

import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import harness
from harness.against import PLAIN, Against

PACKAGES = ("torch", "numpy", "hypothesis", "safetensors")


def versions() -> dict[str, str]:
    """Versions of everything that a result may depend on."""
    return {
        "harness": harness.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Empty is what is not known."""

    # What the ranks ran on, how many there were, and what carried their collectives.
    device: str = ""
    transport: str = ""
    ranks: int = 0
    against: Against = PLAIN
    # Where `check` found it: what it was asked for, and which part of it this was.
    campaign: dict[str, Any] | None = None
    # Where a test found it: which one, and how Hypothesis makes its example again.
    test: str = ""
    blob: str = ""
    versions: dict[str, str] = field(default_factory=versions)
