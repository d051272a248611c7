"""Read the store that a command names, and refuse a damaged one."""

from typing import TYPE_CHECKING, Any

from harness.commands.golden.options import Stored
from harness.commands.options import Output, print_json, print_message
from harness.untrusted import printable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.golden import Golden, Store
    from harness.golden.store import Files

# The exit status if a golden is missing or damaged.
DAMAGED = 4


def read_goldens(options: Output, files: "Files") -> "dict[str, Golden] | None":
    """Return the goldens; if any is damaged, print every damage and return None."""
    from harness.golden import examine

    goldens, damages = examine(files)
    if not damages:
        return goldens
    if options.json:
        print_json({"damaged": [{"file": each.file, "what": each.what} for each in damages]})
    for damage in damages:
        print_message(printable(str(damage)))
    return None


def read_oracles(options: Output, files: "Files") -> "dict[str, Golden] | None":
    """Read goldens as `read_goldens` does; raise `BadGolden` if one was recorded on a device."""
    from harness.golden import BadGolden
    from harness.golden.recorded import is_recorded

    goldens = read_goldens(options, files)
    for name, golden in (goldens or {}).items():
        if is_recorded(golden):
            raise BadGolden(f"{name}: was recorded on a device; only verify and list apply to it")
    return goldens


def golden_record(golden: "Golden") -> dict[str, Any]:
    """Return a golden without its tensors, for a document."""
    from harness.golden.vector import vector_record

    made, commit = golden.stored.made, golden.listed.commit
    return {**vector_record(golden.vector), "made": made, "commit": commit}


def open_store(options: Stored) -> "Store":
    """Return the store in the folder of the options."""
    from harness.golden import Store

    return Store(options.store)


def console_for(options: Output) -> "Console":
    """Return the console for people: stderr if the command prints a document."""
    from rich.console import Console

    return Console(stderr=options.json)
