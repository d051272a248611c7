"""Ranks of one host need no network and no name, and nobody on a network reaches them."""

import json
import subprocess
import sys

import pytest

from properties.helpers.places import ROOT

SECLUDED = ROOT / "properties" / "helpers" / "secluded.py"
NAMESPACES = ("unshare", "--net", "--uts", "--mount")
# Without a word to a name server; each question to a mute one would cost ten seconds at least.
MARGIN = 60.0


@pytest.mark.parametrize("server", ["none", "mute"])
def test_a_host_without_a_network_asks_for_no_name_and_listens_to_nobody(server: str) -> None:
    allowed = subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no namespaces on this machine: {allowed.stderr.decode()}")
    ran = subprocess.run(
        [*NAMESPACES, sys.executable, str(SECLUDED), server],
        capture_output=True,
        text=True,
        timeout=MARGIN,
        check=True,
    )
    assert json.loads(ran.stdout) == {"verdict": "WITHIN", "questions": [], "open": []}
