"""In which run a failure was seen, and on what."""

import platform
from importlib.metadata import version
from typing import Any

import msgspec

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


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Empty is what is not known."""

    # What the ranks ran on, how many there were, and what carried their collectives.
    device: str
    transport: str
    ranks: int
    against: Against
    # Where `check` found it: what it was asked for, and which part of it this was.
    campaign: dict[str, Any] | None
    # Where a test found it: which one, and how Hypothesis makes its example again.
    test: str
    blob: str
    versions: dict[str, str]


def seen_here(**known: Any) -> Origin:
    """The origin of a failure of which this is known, and nothing else but who saw it."""
    empty = dict.fromkeys(("device", "transport", "test", "blob"), "")
    nothing = {**empty, "ranks": 0, "against": PLAIN, "campaign": None, "versions": versions()}
    return Origin(**{**nothing, **known})
