"""A copy of a package with the patch of a finding."""

import re
import shutil
from pathlib import Path

from harness.candidates.published.bugs import Bug
from harness.candidates.published.environment import Environment
from harness.conformance.scripts import shell


def changed_file(patch: Path) -> str:
    """Return the only file that a patch changes."""
    (changed,) = re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)
    return str(changed)


def package_of(patch: Path, bug: Bug) -> str:
    """Return the package that a patch changes, one of those that the bug's page names."""
    named = re.findall(r"(?:^|, )(\w+)/", bug.where)
    (package,) = set(changed_file(patch).split("/")) & set(named)
    return package


def patch_copy(environment: Environment, patch: Path, bug: Bug, folder: Path) -> None:
    """Copy the package of a bug into a folder and patch the copy.

    For a script in this folder Python takes it before the one that is installed.
    """
    package = package_of(patch, bug)
    (released,) = environment.folder.glob(f"lib/python*/site-packages/{package}")
    shutil.copytree(released, folder / package)
    # A repository may have its package in a folder, such as src.
    above = changed_file(patch).split("/").index(package) + 1
    shell(f"git apply -p{above} {patch}", folder)
