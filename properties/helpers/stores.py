"""Small stores of goldens, for tests that damage them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness.case import parse
from harness.generation.situations import situations_of
from harness.golden import Store, Vector, examine, store_files
from harness.golden.generate import make
from properties.helpers.places import ROOT

# The folder of this project's own goldens.
PLACE = ROOT / "golden"
CASES = {
    "two-rows": "case/1 rows=4:1111,3:111 ids=[1,2,3,4],[5,6,7] heads=2/1 vocab=10 sp=2 dim=2",
    "a-window": "case/1 rows=5:10111 heads=2/2 vocab=8 sp=2 dim=2 window=2 loss=row-mean",
    "two-steps": "case/1 rows=3:011,2:11 heads=2/2 vocab=8 sp=1 dp=2 dim=2 steps=2",
}
MADE = {"torch": "2", "platform": "here"}


def vector(name: str) -> Vector:
    case = replace(parse(CASES[name]), dtype="fp64")
    return Vector(name, case, f"It is {name}.", ("B14",), tuple(situations_of(case)), "a test")


@cache
def files() -> Mapping[str, bytes]:
    """Return the files of a store that holds all of these cases."""
    return store_files({name: make(vector(name), MADE, "0" * 40) for name in CASES})


def stored_in(folder: Path) -> Store:
    """Write a store of these cases into a folder."""
    store = Store(folder)
    store.write(files())
    return store


def made_otherwise(folder: Path, **made: str) -> None:
    """Rewrite a store as if its tensors had been made in another way, such as by another torch."""
    goldens, _ = examine(Store(folder).files())
    changed = {
        name: replace(golden, stored=replace(golden.stored, made=golden.stored.made | made))
        for name, golden in goldens.items()
    }
    Store(folder).write(store_files(changed))


def on_disk(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return every file's content and time of writing, so that a test sees any change."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
