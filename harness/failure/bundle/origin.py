"""The run in which a failure was seen: its devices, its versions, and who asked for it."""

import platform
from importlib.metadata import version
from typing import Any

import msgspec

import harness
from harness.against import PLAIN, Against

PACKAGES = ("torch", "numpy", "hypothesis", "safetensors")


def versions() -> dict[str, str]:
    """Return the versions of everything that a result may depend on."""
    return {
        "harness": harness.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
    }


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run in which a failure was seen; a field is empty if it is not known."""

    # The device of the ranks, the transport of their collectives, and their number.
    device: str
    transport: str
    ranks: int
    against: Against
    # If `check` found it: the request, and which shard of it this was.
    campaign: dict[str, Any] | None
    # If a test found it: its name, and the line that makes Hypothesis repeat the example.
    test: str
    blob: str
    versions: dict[str, str]


def local_origin(**known: Any) -> Origin:
    """Return an origin with these fields and the versions of this process; the rest is empty."""
    empty = dict.fromkeys(("device", "transport", "test", "blob"), "")
    nothing = {**empty, "ranks": 0, "against": PLAIN, "campaign": None, "versions": versions()}
    return Origin(**{**nothing, **known})
