"""`candidates`: list the published packages that are wired, and install them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from harness.commands.options import PASSED, Output, print_json, print_message
from harness.commands.values import UsageError

if TYPE_CHECKING:
    from harness.candidates.published.environment import Environment


Names = Annotated[
    tuple[str, ...],
    Parameter(
        name="NAME",
        help="a listed name: its pinned release; NAME@VERSION: another release; NAME@newest: the "
        "newest on the index; all: every listed name; you may name several",
    ),
]


def show(*, options: Output = Output()) -> int:
    """List the wired packages, and which releases are installed."""
    from rich.console import Console

    from harness.candidates.published.environment import Environment, others_of
    from harness.candidates.published.library import libraries
    from harness.console import empty_table, print_table

    wired: list[dict[str, Any]] = []
    for library in libraries().values():
        installed = Environment(library, library.pinned).installed
        wired.append(
            {
                "name": library.name,
                "distribution": library.distribution,
                "version": library.pinned,
                "installed": bool(installed),
                "others": list(others_of(library)),
                "candidates": [f"{library.name}.{key}" for key in library.limits],
            }
        )
    if options.json:
        print_json({"candidates": wired})
        return PASSED
    table = empty_table("published candidates")
    for name in ("candidate", "release", "installed"):
        table.add_column(name, no_wrap=True)
    for package in wired:
        installed_releases = ["yes" if package["installed"] else "no", *package["others"]]
        release = f"{package['distribution']} {package['version']}"
        for candidate in package["candidates"]:
            table.add_row(candidate, release, ", ".join(installed_releases))
    print_table(Console(), table)
    return PASSED


def install(names: Names, /, *, options: Output = Output()) -> int:
    """Make the environment for the ranks of a package."""
    done: list[dict[str, Any]] = []
    for environment in _find_environments(names):
        name = f"{environment.library.name}@{environment.version}"
        print_message(f"{name} in {environment.folder}")
        done.append({"candidate": name, "packages": environment.install()})
    if options.json:
        print_json({"installed": done})
    return PASSED


def _find_environments(names: Sequence[str]) -> "list[Environment]":
    """Return the environment of each name, without duplicates."""
    from harness.candidates.published.environment import Environment
    from harness.candidates.published.library import libraries

    known = libraries()
    environments: dict[Environment, None] = {}
    for name in known if names == ("all",) else names:
        library, _, version = name.partition("@")
        if library not in known:
            raise UsageError(f"NAME={name}: not listed; use one of {', '.join(known)}")
        environments[Environment(known[library], version or known[library].pinned)] = None
    return list(environments)


app = App(name="candidates", help_format="markdown")
app.command(show, name="list")
app.command(install)
