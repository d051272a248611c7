"""The trial whether ranks can share a GPU over NCCL, here with ranks on the CPU over gloo.

No test here runs NCCL.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.candidates import Named
from harness.case import Case
from harness.rank_program.placement import Placement
from harness.ranks import shared_gpu
from harness.ranks.pool import RankPool
from harness.ranks.shared_gpu import why_ranks_cannot_share
from properties.helpers.alive import address_of, left_behind
from properties.helpers.places import PLANTED

FAULTY = PLANTED / "faulty.py"
# Stops ranks before they connect, but not their supervisor.
STUCK = "import os, signal\nif 'RANK' in os.environ:\n    signal.pause()\n"
MARGIN = 10.0


@pytest.fixture
def launched(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[str]]:
    """The addresses of all launches; nothing may be left of them after the test."""
    addresses = []

    class Watched(RankPool):
        def submit(self, case: Case, candidate: Named, **asked: Any) -> None:
            launches = self.launches
            super().submit(case, candidate, **asked)
            if self.launches > launches:
                addresses.append(address_of(self.pids()[0]))

    monkeypatch.setattr(shared_gpu, "RankPool", Watched)
    monkeypatch.setattr(shared_gpu, "nccl_version", lambda: (2, 30, 7))
    yield addresses
    assert [left for address in addresses for left in left_behind(address)] == []


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ((2, 29, 7), "which NCCL 2.29 refuses and NCCL 2.30 may not"),
        ((2, 4, 8), "which NCCL 2.4 refuses and NCCL 2.30 may not"),
        ((1, 31, 0), "which NCCL 1.31 refuses and NCCL 2.30 may not"),
        (None, "and this torch has loaded no NCCL"),
    ],
)
def test_an_nccl_that_is_too_old_or_missing_is_not_tried(
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, ...] | None,
    why: str,
) -> None:
    monkeypatch.setattr(shared_gpu, "nccl_version", lambda: version)
    assert why_ranks_cannot_share(Placement(), 2) == why
    assert launched == []


def test_ranks_that_finish_a_step_can_share_a_gpu(launched: list[str]) -> None:
    assert why_ranks_cannot_share(Placement(), 3) == ""
    assert len(launched) == 1


def test_the_reason_of_a_failing_transport_is_quoted(launched: list[str]) -> None:
    why = why_ranks_cannot_share(Placement(transport="unheard-of"), 2)
    assert why.startswith("and a first step ended so: rank ")
    assert "died while starting, exit status 1 (ValueError: " in why
    assert len(launched) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
def test_ranks_that_never_start_are_given_up(
    launched: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(shared_gpu, "START_DEADLINE", 3.0)
    started = time.monotonic()
    why = why_ranks_cannot_share(Placement(), 2)
    assert time.monotonic() - started < 3 + MARGIN
    assert why.startswith("and a first step ended so: not all ranks were up within 3 s: rank 0, 1")
    assert len(launched) == 1


@pytest.mark.slow
def test_ranks_that_hang_are_given_up(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_gpu, "CANDIDATE", f"{FAULTY}:SLEEPS")
    monkeypatch.setattr(shared_gpu, "DEADLINE", 2.0)
    why = why_ranks_cannot_share(Placement(), 2)
    assert why.startswith("and a first step ended so: rank 1 gave no answer within 2 s")
    assert len(launched) == 1
