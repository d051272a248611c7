"""Ranks of one host need no network and no name, and nobody on a network reaches them."""

import json
import sys

import pytest

from properties.helpers.commands import ran
from properties.helpers.places import ROOT

SECLUDED = ROOT / "properties" / "helpers" / "secluded.py"
NAMESPACES = ("unshare", "--net", "--uts", "--mount")


def test_a_host_without_a_network_asks_for_no_name_and_listens_to_nobody() -> None:
    allowed = ran(*NAMESPACES, "true")
    if allowed.returncode:
        pytest.skip(f"no namespaces on this machine: {allowed.stderr}")
    told = ran(*NAMESPACES, sys.executable, SECLUDED)
    assert json.loads(told.stdout) == {"verdict": "WITHIN", "questions": [], "open": []}
