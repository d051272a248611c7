"""A copy of a package with the patch of a finding."""

import re
import shutil
from pathlib import Path

from harness.candidates.published.environment import Environment
from harness.conformance.scripts import shell


def changed_file(patch: Path) -> str:
    """Return the only file that a patch changes."""
    (changed,) = re.findall(r"^\+\+\+ b/(\S+)$", patch.read_text(), re.MULTILINE)
    return str(changed)


def patch_copy(environment: Environment, patch: Path, package: str, folder: Path) -> None:
    """Copy a package into a folder and patch the copy.

    For a script in this folder Python takes it before the one that is installed.
    """
    (released,) = environment.folder.glob(f"lib/python*/site-packages/{package}")
    shutil.copytree(released, folder / package)
    # A repository may have its package in a folder, such as src.
    above = changed_file(patch).split("/").index(package) + 1
    shell(f"git apply -p{above} {patch}", folder)
