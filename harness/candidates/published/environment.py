"""The virtual environment that a published candidate's ranks run in.

It holds only the packages that the candidate pins. torch, and everything else that is missing,
comes from the environment of the harness itself. Other pins, another Python or another torch make
another environment: an environment is never changed, and an unfinished one is never used.
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

# The file that is written last: installed versions by name.
DONE = "installed.json"
FOLDER = "HARNESS_ENVIRONMENTS"
NEWEST = "newest"
TORCH = "torch"


class NotInstalled(BadInput):
    """The candidate has no environment; the message names the command that makes one."""


class CannotInstall(BadInput):
    """pip failed; the message has the last lines of its output."""


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
    def folder(self) -> Path:
        content = "\n".join([*self.requirements, sys.version, version(TORCH)])
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
        return str(self.folder / "bin" / "python")

    def install(self) -> dict[str, str]:
        """Make the environment unless it exists -> version by distribution."""
        # The newest release may have changed since.
        if self.installed and self.version != NEWEST:
            return self.installed
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, symlinks=True, with_pip=False)
        packages = next(self.folder.glob("lib/python*/site-packages"))
        # The harness's packages come behind the candidate's; addsitedir follows links to sources.
        ours = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
        lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(ours)]
        (packages / "harness.pth").write_text("".join(lines))
        self._pip()
        found = {package.name: package.version for package in distributions(path=[str(packages)])}
        if self.library.distribution == TORCH:
            found[TORCH] = version(TORCH)
        text = json.dumps(dict(sorted(found.items())), indent=1)
        write_file(self.folder / DONE, text.encode())
        return found

    def _pip(self) -> None:
        wanted = [pin for pin in self.requirements if not self._is_our_torch(pin)]
        if not wanted:
            return
        command = [
            *(sys.executable, "-P", "-m", "pip", "--python", str(self.folder / "bin" / "python")),
            *("install", "--quiet", "--disable-pip-version-check"),
            # Install exactly the pins, even if the harness has another version of them; build
            # sources with the harness's torch, not with one that pip would fetch.
            *("--no-deps", "--ignore-installed", "--no-build-isolation"),
            *wanted,
        ]
        run = subprocess.run(command, check=False, capture_output=True, text=True)
        if run.returncode:
            last_lines = (run.stderr or run.stdout).strip().splitlines()[-6:]
            raise CannotInstall(
                f"candidate={self.library.name}: pip could not install "
                f"{' '.join(wanted)}: {' / '.join(last_lines)}"
            )

    def _is_our_torch(self, requirement: str) -> bool:
        """Whether this is the harness's own torch; raise if it is another torch."""
        name, _, asked = requirement.partition("==")
        ours = version(TORCH).partition("+")[0]
        if name == TORCH and asked not in ("", ours):
            raise CannotInstall(
                f"candidate={self.library.name}: is torch {asked} itself, and the harness runs "
                f"with torch {ours}; install that one, or run it as "
                f"{self.library.name}@{ours}"
            )
        return name == TORCH


def _plain(distribution: str) -> str:
    """Return one of the spellings that a package index accepts."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


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
