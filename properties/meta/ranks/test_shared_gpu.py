"""Whether ranks share a GPU over NCCL is tried on real ranks, which here share the CPU over gloo.

That NCCL of 2.30 or newer does it has not been tried.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.candidates import Named
from harness.case import Case
from harness.ranks import shared_gpu
from harness.ranks.placement import Placement
from harness.ranks.pool import RankPool
from harness.ranks.shared_gpu import why_not
from properties.helpers.alive import address_of, left_behind
from properties.helpers.places import PLANTED

FAULTY = PLANTED / "faulty.py"
# Ranks stop dead before they connect, but their supervisor does not.
STUCK = "import os, signal\nif 'RANK' in os.environ:\n    signal.pause()\n"
MARGIN = 10.0


@pytest.fixture
def launched(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[list[str]]:
    """The addresses of all launches, of which nothing may be left afterwards."""
    addresses = []

    class Watched(RankPool):
        def submit(self, case: Case, candidate: Named, **asked: bool) -> None:
            launches = self.launches
            super().submit(case, candidate, **asked)
            if self.launches > launches:
                addresses.append(address_of(self.pids()[0]))

    monkeypatch.setattr(shared_gpu, "RankPool", Watched)
    monkeypatch.setattr(shared_gpu, "loaded_nccl", lambda: (2, 30, 7))
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
def test_an_nccl_that_is_too_old_or_missing_is_not_even_tried(
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, ...] | None,
    why: str,
) -> None:
    monkeypatch.setattr(shared_gpu, "loaded_nccl", lambda: version)
    assert why_not(Placement(), 2) == why
    assert launched == []


def test_ranks_that_get_through_a_step_can_share(launched: list[str]) -> None:
    assert why_not(Placement(), 3) == ""
    assert len(launched) == 1


def test_what_a_transport_says_against_it_is_told(launched: list[str]) -> None:
    why = why_not(Placement(transport="unheard-of"), 2)
    assert why.startswith("and a first step ended so: rank ")
    assert "died while starting, exit status 1 (ValueError: " in why
    assert len(launched) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("own_processes")
def test_ranks_that_never_come_up_are_given_up(
    launched: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(shared_gpu, "START_DEADLINE", 3.0)
    started = time.monotonic()
    why = why_not(Placement(), 2)
    assert time.monotonic() - started < 3 + MARGIN
    assert why.startswith("and a first step ended so: not all ranks were up within 3 s: rank 0, 1")
    assert len(launched) == 1


@pytest.mark.slow
def test_ranks_that_wait_for_ever_are_given_up(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_gpu, "CANDIDATE", f"{FAULTY}:SLEEPS")
    monkeypatch.setattr(shared_gpu, "DEADLINE", 2.0)
    why = why_not(Placement(), 2)
    assert why.startswith("and a first step ended so: rank 1 gave no answer within 2 s")
    assert len(launched) == 1
