"""The store that a command was given."""

import sys
from typing import TYPE_CHECKING, Any

from harness.commands.golden.options import Stored
from harness.commands.options import Output, print_json
from harness.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.golden import Golden, Store
    from harness.golden.store import Files

DAMAGED = 4


def whole(options: Output, files: "Files") -> "dict[str, Golden] | None":
    """The goldens; or nothing, where one is damaged, and every damage is told."""
    from harness.golden import examine

    goldens, damages = examine(files)
    if not damages:
        return goldens
    if options.json:
        print_json({"damaged": [{"file": each.file, "what": each.what} for each in damages]})
    for damage in damages:
        print(f"harness: {printable(str(damage))}", file=sys.stderr)  # noqa: T201 - a command speaks
    return None


def oracles(options: Output, files: "Files") -> "dict[str, Golden] | None":
    """Read goldens, and refuse any that plain training did not compute."""
    from harness.golden import BadGolden
    from harness.golden.recorded import is_recorded

    goldens = whole(options, files)
    for name, golden in (goldens or {}).items():
        if is_recorded(golden):
            raise BadGolden(f"{name}: was recorded on a device; only verify and list apply to it")
    return goldens


def described(golden: "Golden") -> dict[str, Any]:
    """A golden without its tensors, as JSON."""
    from harness.golden.vector import vector_record

    made, commit = golden.stored.made, golden.listed.commit
    return {**vector_record(golden.vector), "made": made, "commit": commit}


def store_of(options: Stored) -> "Store":
    """The folder that was named."""
    from harness.golden import Store

    return Store(options.store)


def console(options: Output) -> "Console":
    """Where people read."""
    from rich.console import Console

    return Console(stderr=options.json)
