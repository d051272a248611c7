"""The commands on the page of a finding print what the page says, without the harness."""

import re
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.candidates.published.library import libraries
from harness.conformance import script_of
from harness.conformance.scripts import PROMPT, make, transcript
from harness.conformance.upstream_reports import file_of, findings_of
from properties.helpers.places import ROOT

pytestmark = pytest.mark.library
DOCS = ROOT / "docs"
# By library, its scripts with the pages beside them.
BESIDE = {
    library.name: [
        (script, (DOCS / file_of(library, bug)).read_text())
        for bug in findings_of(library)
        if (script := script_of(library, bug, DOCS)).is_file()
    ]
    for library in libraries().values()
}


def blocks(page: str) -> list[str]:
    """Return the blocks of code about the script of a page: what installs, and what is shown."""
    section = page.partition("\n## Script\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def runs(interpreter: str) -> bool:
    """Whether there is such an interpreter; some managers have a name on PATH that starts none."""
    found = shutil.which(interpreter)
    return bool(found) and not subprocess.run([interpreter, "-V"], check=False).returncode


@pytest.mark.parametrize("name", [name for name, scripts in BESIDE.items() if scripts])
def test_the_commands_of_a_page_alone_print_what_it_says(name: str) -> None:
    # One environment is made for all pages of a library, which have the same commands.
    (install,) = {blocks(page)[0] for _, page in BESIDE[name]}
    if not runs(interpreter := install.split()[0]):
        pytest.skip(f"there is no {interpreter}")
    with TemporaryDirectory() as made:
        folder = Path(made)
        make(install, folder)
        for script, page in BESIDE[name]:
            _, shown = blocks(page)
            shutil.copy(script, folder)
            commands = [
                line.removeprefix(PROMPT) for line in shown.splitlines() if line.startswith(PROMPT)
            ]
            assert transcript(commands, folder) == shown
            (folder / script.name).unlink()
