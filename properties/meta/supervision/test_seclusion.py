"""Ranks of one host need no network and no host name, and no network can reach them."""

import json
import os
import sys

import pytest

from harness.ranks.pool import RankPool
from properties.helpers.commands import run_to_end
from properties.helpers.places import ROOT
from properties.helpers.sockets import listening

SECLUDED = ROOT / "properties" / "helpers" / "secluded.py"
NAMESPACES = ("unshare", "--net", "--uts", "--mount")


@pytest.mark.slow
def test_on_a_host_without_a_network_a_pool_looks_up_no_name_and_opens_no_port() -> None:
    allowed = run_to_end(*NAMESPACES, "true")
    if allowed.returncode:
        pytest.skip(f"no namespaces on this machine: {allowed.stderr}")
    run = run_to_end(*NAMESPACES, sys.executable, SECLUDED)
    assert json.loads(run.stdout) == {"verdict": "WITHIN", "questions": [], "open": []}


def test_a_pool_listens_on_loopback_only(harness_pool: RankPool) -> None:
    assert harness_pool.wait_until_ready() is None
    assert listening(os.getpid(), *harness_pool.pids()) == {"127.0.0.1"}
