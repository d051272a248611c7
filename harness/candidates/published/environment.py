"""The virtual environment that a published candidate's ranks run in.

It holds only the packages that the candidate pins. torch, and everything else that is missing,
comes from the environment of the harness itself, or from the base of another Python if the library
needs one. A candidate that is torch itself has a torch of its own, unless it pins the harness's.
Other pins, another Python or another torch make another environment: an environment is never
changed, and an unfinished one is never used.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path

import harness
from harness.candidates.published.interpreters import (
    OWN,
    Base,
    install,
    make_folder,
    packages,
)
from harness.candidates.published.library import Library
from harness.storage import write_file
from harness.untrusted import BadInput

# The file that is written last: installed versions by name.
DONE = "installed.json"
FOLDER = "HARNESS_ENVIRONMENTS"
NEWEST = "newest"
TORCH = "torch"
OUR_TORCH = f"{TORCH}=={version(TORCH).partition('+')[0]}"


class NotInstalled(BadInput):
    """The candidate has no environment; the message names the command that makes one."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one release of one library, installed or not."""

    library: Library
    version: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """The pins of the folder, with this release of the library."""
        _, *others = self.library.requirements
        if self.version == NEWEST:
            return (self.library.distribution, *others)
        return (f"{self.library.distribution}=={self.version}", *others)

    @property
    def base(self) -> Base | None:
        """What it borrows from instead of the harness, if it has another Python.

        A release older than the pinned one has the Python of the harness.
        """
        python = self.library.python
        is_older = self.version != NEWEST and _order(self.version) < _order(self.library.pinned)
        return None if is_older or python in ("", OWN) else Base(python, root())

    @property
    def folder(self) -> Path:
        lent = (self.base.python, *self.base.pins) if self.base else (sys.version, version(TORCH))
        content = "\n".join([*self.requirements, *lent])
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        return root() / f"{self.library.name}-{self.version}-{digest}"

    @property
    def installed(self) -> dict[str, str]:
        """Version by distribution; empty if the environment is missing or unfinished."""
        try:
            found: dict[str, str] = json.loads((self.folder / DONE).read_text())
        except FileNotFoundError:
            return {}
        return found

    @property
    def release(self) -> str:
        """The version of the library, also if the newest was requested."""
        if self.version != NEWEST:
            return self.version
        found = {_plain(name): version for name, version in self.installed.items()}
        return found.get(_plain(self.library.distribution), "")

    @property
    def python(self) -> str:
        """The interpreter of its ranks."""
        if not self.installed:
            suffix = "" if self.version == self.library.pinned else f"@{self.version}"
            raise NotInstalled(
                f"candidate={self.library.name}: {self.library.distribution} {self.version} is "
                f"not installed; run python -m harness candidates install "
                f"{self.library.name}{suffix}"
            )
        return str(self._interpreter)

    def install(self) -> dict[str, str]:
        """Make the environment unless it exists -> version by distribution."""
        # The newest release may have changed since.
        if self.installed and self.version != NEWEST:
            return self.installed
        wanted = [pin for pin in self.requirements if pin != OUR_TORCH]
        lines = self._make()
        own = packages(self.folder)
        (own / "harness.pth").write_text("".join(f"{line}\n" for line in lines))
        if wanted:
            # Install exactly the pins, even if the harness has another version of them; build
            # sources with the harness's torch, not with one that pip would fetch. Another torch
            # brings the libraries that it was built with.
            alone = [] if self.library.distribution == TORCH else ["--no-deps"]
            options = (*alone, "--ignore-installed", "--no-build-isolation")
            install(self._interpreter, options, wanted, f"candidate={self.library.name}")
        found = {package.name: package.version for package in distributions(path=[str(own)])}
        if OUR_TORCH in self.requirements:
            found[TORCH] = version(TORCH)
        text = json.dumps(dict(sorted(found.items())), indent=1)
        write_file(self.folder / DONE, text.encode())
        return found

    def _make(self) -> list[str]:
        """Make an empty environment -> the lines by which it finds what is behind its packages.

        addsitedir follows links to sources.
        """
        if self.base is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            venv.create(self.folder, symlinks=True, with_pip=False)
            ours = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
            return [f"import site; site.addsitedir({path!r})" for path in sorted(ours)]
        library = self.library
        subject = f"candidate={library.name}: {library.distribution} {self.version}"
        interpreter = self.base.make(subject)
        shutil.rmtree(self.folder, ignore_errors=True)
        make_folder(interpreter, self.folder, subject)
        # The harness alone: beside it may lie packages of its own Python.
        (alone := self.folder / "harness").mkdir()
        (alone / harness.__name__).symlink_to(Path(harness.__file__).parent)
        return [f"import site; site.addsitedir({str(packages(self.base.folder))!r})", str(alone)]

    @property
    def _interpreter(self) -> Path:
        return self.folder / "bin" / "python"


def _plain(distribution: str) -> str:
    """Return one of the spellings that a package index accepts."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _order(version: str) -> tuple[int, ...]:
    """Return what orders releases; a release candidate counts as its release."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def root() -> Path:
    """Return the folder of all environments."""
    chosen = os.environ.get(FOLDER)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(cache) / "harness" / "candidates"


def others_of(library: Library) -> Iterator[str]:
    """Yield the installed releases other than the pinned one."""
    for done in sorted(root().glob(f"{library.name}-*/{DONE}")):
        release = done.parent.name.removeprefix(f"{library.name}-").rpartition("-")[0]
        if release != library.pinned and Environment(library, release).folder == done.parent:
            yield release
