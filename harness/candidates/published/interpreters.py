"""Another Python than the harness's own, for libraries whose pinned release needs one.

An environment of such a Python can borrow no packages of the harness. So there is one base for
each Python, made once: it holds torch and what else ranks need of the harness, in the versions
that the harness has.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from harness.storage import write_file
from harness.untrusted import BadInput

# Names an interpreter that is not on PATH.
VARIABLE = "HARNESS_PYTHON"
# What ranks need of the harness's environment; pip adds what these need. Some libraries build from
# source with setuptools.
NEEDED = ("torch", "numpy", "msgspec", "safetensors", "transformers", "setuptools")
# The file that is written last.
DONE = "base"
OWN = "{}.{}".format(*sys.version_info)


class NoInterpreter(BadInput):
    """There is no such Python on this machine; the message says where it was looked for."""


class CannotInstall(BadInput):
    """pip or venv failed; the message has the last of what it printed."""


@dataclass(frozen=True, slots=True)
class Base:
    """The packages that all environments of another Python share."""

    # As in 3.12.
    python: str
    # The folder of all environments.
    root: Path

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256("\n".join(self.pins).encode()).hexdigest()[:8]
        return self.root / f"python-{self.python}-{digest}"

    @property
    def pins(self) -> tuple[str, ...]:
        """What it holds, but for what that needs in turn."""
        return tuple(pin for name in NEEDED for pin in _pin(name))

    def make(self, subject: str) -> str:
        """Make it unless it exists -> its interpreter, which makes environments of that Python."""
        made = self.folder / "bin" / "python"
        if (self.folder / DONE).exists():
            return str(made)
        # Look first: a base that lacks its Python must not take the place of an older one.
        interpreter = find(self.python, subject)
        shutil.rmtree(self.folder, ignore_errors=True)
        make_folder(interpreter, self.folder, subject)
        # pip chooses what is not pinned; let it be what the harness has.
        versions = self.folder / "constraints.txt"
        found = {name: _pin(name) for name in (each.name for each in distributions())}
        versions.write_text("".join(f"{pin}\n" for pins in found.values() for pin in pins))
        install(made, ("--constraint", str(versions)), self.pins, subject)
        write_file(self.folder / DONE, "\n".join(self.pins).encode())
        return str(made)


def make_folder(interpreter: str, folder: Path, subject: str) -> None:
    """Make an empty environment of this interpreter."""
    command = [interpreter, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode:
        # Debian has the module in a package of its own, and the last line says that it is missing.
        *_, reason = (run.stderr or run.stdout).strip().splitlines() or [""]
        raise CannotInstall(f"{subject}: {interpreter} makes no environment in {folder}: {reason}")


def packages(folder: Path) -> Path:
    """Return where an environment has its packages."""
    return next(folder.glob("lib/python*/site-packages"))


def find(python: str, subject: str) -> str:
    """Return an interpreter of this Python; the error begins with its subject, who needs it."""
    reasons = []
    for name in filter(None, (os.environ.get(VARIABLE), f"python{python}")):
        reason = _why_not(name, python)
        if not reason:
            return name
        reasons.append(reason)
    raise NoInterpreter(
        f"{subject} needs Python {python}, but {' and '.join(reasons)}; put python{python} on "
        f"PATH, or set {VARIABLE} to the path of such an interpreter"
    )


def _why_not(name: str, python: str) -> str:
    """Return why this is no interpreter of the Python, or nothing if it is one."""
    if not shutil.which(name):
        return f"there is no {name}"
    # Some managers of Pythons put a script of that name on PATH even if it starts nothing.
    command = [name, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode:
        reason, _, _ = run.stderr.strip().partition("\n")
        return f"{name} does not start ({reason})"
    found = run.stdout.strip()
    return "" if found == python else f"{name} is Python {found}"


def install(python: Path, options: Sequence[str], wanted: Sequence[str], subject: str) -> None:
    """Run pip for this interpreter."""
    # Python compiles later what is imported, a small part of it, if it may write bytecode. If not,
    # each process would compile torch again.
    compiled = "--compile" if sys.dont_write_bytecode else "--no-compile"
    command = [
        *(sys.executable, "-P", "-m", "pip", "--python", str(python), "install"),
        *("--quiet", "--disable-pip-version-check", compiled, *options, *wanted),
    ]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    if run.returncode:
        last_lines = (run.stderr or run.stdout).strip().splitlines()[-6:]
        raise CannotInstall(
            f"{subject}: pip could not install {' '.join(wanted)}: {' / '.join(last_lines)}"
        )


def _pin(name: str) -> tuple[str, ...]:
    """Return the pin of the harness's own version, or nothing if the harness has none."""
    try:
        return (f"{name}=={version(name).partition('+')[0]}",)
    except PackageNotFoundError:
        return ()
