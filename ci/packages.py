#!/usr/bin/env python3
"""Print which packages this interpreter lacks; fail if the GPU tier needs one of them."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from project import ROOT


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed, others = floors(project["dependencies"]), floors([*extras["test"], *extras["flash"]])
    needed["pytest"] = others.pop("pytest")
    for why in lacking(others):
        print(f"not needed, and {why}")
    if missing := "; ".join(lacking(needed)):
        sys.exit(f"{missing}: bring wheels along and name their folder in WHEELS")
    print("all that is needed is here")


def floors(requirements: list[str]) -> dict[str, str]:
    """Return the lowest version of each package, from requirements such as `torch>=2.11`."""
    return dict(re.findall(r"^([\w-]+)>=([\d.]+)$", "\n".join(requirements), re.MULTILINE))


def lacking(wanted: dict[str, str]) -> Iterator[str]:
    """Yield for each package that is missing or too old a sentence that says so."""
    for name, floor in wanted.items():
        try:
            if numbers(version(name)) < numbers(floor):
                yield f"{name} {version(name)} is older than {floor}"
        except PackageNotFoundError:
            yield f"{name} is not installed"


def numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release.partition("+")[0])]


if __name__ == "__main__":
    main()
