"""The virtual environment that a published candidate's ranks run in.

It holds what the candidate pins and nothing else; torch, and whatever else is missing, comes from
the environment that the harness itself runs in. An environment of other pins, another Python or
another torch is a different one: none is ever changed, and an unfinished one is not used.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path

from harness.candidates.published.library import Library
from harness.storage import write_file
from harness.untrusted import BadInput

# Written last: what was installed, by name.
DONE = "installed.json"
FOLDER = "HARNESS_ENVIRONMENTS"
NEWEST = "newest"
TORCH = "torch"


class NotInstalled(BadInput):
    """The candidate has no environment to run in; the message says how to make one."""


class CannotInstall(BadInput):
    """pip gave up; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where one release of one library is, or will be, installed."""

    library: Library
    version: str

    @property
    def requirements(self) -> tuple[str, ...]:
        """The pins of the folder, but for the library itself."""
        _, *others = self.library.requirements
        if self.version == NEWEST:
            return (self.library.distribution, *others)
        return (f"{self.library.distribution}=={self.version}", *others)

    @property
    def folder(self) -> Path:
        stated = "\n".join([*self.requirements, sys.version, version(TORCH)])
        digest = hashlib.sha256(stated.encode()).hexdigest()[:8]
        return root() / f"{self.library.name}-{self.version}-{digest}"

    @property
    def installed(self) -> dict[str, str]:
        """Version by distribution; empty if the environment is missing or not finished."""
        try:
            found: dict[str, str] = json.loads((self.folder / DONE).read_text())
        except FileNotFoundError:
            return {}
        return found

    @property
    def release(self) -> str:
        """The version of the library, also where the newest was asked for."""
        if self.version != NEWEST:
            return self.version
        found = {_plain(name): version for name, version in self.installed.items()}
        return found.get(_plain(self.library.distribution), "")

    @property
    def python(self) -> str:
        """The interpreter of its ranks."""
        if not self.installed:
            asked = "" if self.version == self.library.pinned else f"@{self.version}"
            raise NotInstalled(
                f"candidate={self.library.name}: {self.library.distribution} {self.version} is "
                f"not installed; run python -m harness candidates install "
                f"{self.library.name}{asked}"
            )
        return str(self.folder / "bin" / "python")

    def install(self) -> dict[str, str]:
        """Make the environment unless it is there -> version by distribution."""
        # What is newest today may be another one than yesterday.
        if self.installed and self.version != NEWEST:
            return self.installed
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, symlinks=True, with_pip=False)
        packages = next(self.folder.glob("lib/python*/site-packages"))
        # Our packages come behind the candidate's own; addsitedir follows their links to sources.
        ours = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
        lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(ours)]
        (packages / "harness.pth").write_text("".join(lines))
        self._pip()
        found = {each.name: each.version for each in distributions(path=[str(packages)])}
        if self.library.distribution == TORCH:
            found[TORCH] = version(TORCH)
        text = json.dumps(dict(sorted(found.items())), indent=1)
        write_file(self.folder / DONE, text.encode())
        return found

    def _pip(self) -> None:
        wanted = [each for each in self.requirements if not self._is_ours(each)]
        if not wanted:
            return
        command = [
            *(sys.executable, "-P", "-m", "pip", "--python", str(self.folder / "bin" / "python")),
            *("install", "--quiet", "--disable-pip-version-check"),
            # What is pinned is all that is wanted, also where ours has another version of it;
            # sources are built with our torch, not with one that pip would fetch for that.
            *("--no-deps", "--ignore-installed", "--no-build-isolation"),
            *wanted,
        ]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        if run.returncode:
            said = (run.stderr or run.stdout).strip().splitlines()[-6:]
            raise CannotInstall(
                f"candidate={self.library.name}: pip could not install "
                f"{' '.join(wanted)}: {' / '.join(said)}"
            )

    def _is_ours(self, requirement: str) -> bool:
        """Whether it is the torch that the harness runs with: ranks have no other."""
        name, _, asked = requirement.partition("==")
        has = version(TORCH).partition("+")[0]
        if name == TORCH and asked not in ("", has):
            raise CannotInstall(
                f"candidate={self.library.name}: is torch {asked} itself, and the harness runs "
                f"with torch {has}; install that one, or run it as "
                f"{self.library.name}@{has}"
            )
        return name == TORCH


def _plain(distribution: str) -> str:
    """One spelling of the several that an index takes."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def root() -> Path:
    """The folder of all environments."""
    stated = os.environ.get(FOLDER)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(stated) if stated else Path(cache) / "harness" / "candidates"


def others_of(library: Library) -> Iterator[str]:
    """Releases beside the pinned one that are installed."""
    for done in sorted(root().glob(f"{library.name}-*/{DONE}")):
        release = done.parent.name.removeprefix(f"{library.name}-").rpartition("-")[0]
        if release != library.pinned and Environment(library, release).folder == done.parent:
            yield release
