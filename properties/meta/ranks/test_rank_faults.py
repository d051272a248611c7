"""Every way in which a rank can fail is a named fault, in time, and leaves nothing behind."""

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.candidates import locate
from harness.case import Case, parse
from harness.ranks import cpu_wait, dispatcher, supervisor
from harness.ranks.pool import RankPool
from harness.trace import Assembly, Fault, Kind, Outcome
from harness.untrusted import LONGEST
from properties.helpers.alive import address_of, left_behind
from properties.helpers.places import PLANTED
from properties.helpers.wait import eventually

FAULTY = PLANTED / "faulty.py"
CASE = parse("case/1 rows=3:111,4:1011 sp=2")
ALONE = parse("case/1 rows=3:111,4:1011 sp=1")
DEADLINE = 4.0
MARGIN = 5.0

Expect = Callable[..., Fault]


def faulty(name: str) -> str:
    return f"{FAULTY}:{name}"


def is_right(case: Case, outcome: Outcome) -> bool:
    return (
        isinstance(outcome, Assembly)
        and not outcome.misfits
        and len(outcome.trace["nll"].values) == case.tokens
    )


@contextmanager
def ended(pid: int) -> Iterator[None]:
    """Wait until a process that is killed inside is gone, and with it all that it held."""
    handle = os.pidfd_open(pid)
    yield
    assert select.select([handle], [], [], MARGIN)[0]
    os.close(handle)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2, deadline=DEADLINE) as pool:
        yield pool
        address = address_of(pool.pids()[0])
    assert left_behind(address) == []


@pytest.fixture
def fault_of(pool: RankPool) -> Iterator[Expect]:
    """Runs a case that ends in a fault; afterwards the same pool has to be as good as new."""
    assert pool.wait_until_ready() is None
    address, launches = address_of(pool.pids()[0]), pool.launches

    def run(candidate: str, case: Case = CASE) -> Fault:
        started = time.monotonic()
        outcome = pool.run(case, locate(candidate))
        assert isinstance(outcome, Fault)
        assert time.monotonic() - started < DEADLINE + MARGIN
        return outcome

    yield run
    # Other cases may have had a launch of their own.
    pool.kill()
    assert left_behind(address) == []
    assert is_right(CASE, pool.run(CASE, locate("native-local")))
    assert pool.launches > launches


@pytest.mark.slow
def test_a_rank_that_never_gets_anywhere_is_named_with_its_stack(
    fault_of: Expect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy this machine is.
    monkeypatch.setattr(cpu_wait, "waited", lambda _: {})
    fault = fault_of(faulty("SPINS"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    assert fault.summary == "rank 1 gave no answer within 4 s, nor did rank 0"
    assert fault.last_key == "case received"
    assert "rank 0 entered all_gather of shape [1]; rank 1 never came" in fault.ranks[0]
    assert fault.ranks[1].startswith("rank 0: waits in all_gather #")
    assert fault.ranks[2].startswith("rank 1: is in no collective")
    assert "in spin\n" in fault.stacks[1]
    assert "in check_peers\n" in fault.stacks[0]


@pytest.mark.slow
def test_a_thread_that_is_not_pythons_own_is_told_last_as_the_one_that_is_waited_for(
    fault_of: Expect,
) -> None:
    fault = fault_of(faulty("SLEEPS_ELSEWHERE"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    main, _, other = fault.stacks[1].partition("  thread torch's ")
    assert "in sleep_elsewhere\n" in main
    assert "in sleep\n" in other


@pytest.mark.parametrize("name", ["IMPORTS_SLOWLY", "IMPORTS_ELSEWHERE"])
def test_a_rank_that_imports_a_library_is_not_called_stuck(pool: RankPool, name: str) -> None:
    started = time.monotonic()
    assert is_right(CASE, pool.run(CASE, locate(faulty(name))))
    assert time.monotonic() - started > DEADLINE, "nobody had to wait for it"


@pytest.mark.slow
def test_an_import_that_never_ends_is_no_collective_that_waits(
    fault_of: Expect, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.deadlines, "case", 2.0)
    monkeypatch.setattr(pool.deadlines, "start", 3.0)
    fault = fault_of(faulty("NEVER_IMPORTED"))
    assert (fault.kind, fault.rank) == (Kind.START, 1)
    assert fault.summary == "rank 1 still imported endless after 3 s"
    assert "in exec_module" in fault.stacks[1]


def test_what_a_busy_machine_keeps_from_ranks_is_not_held_against_them(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_right(CASE, pool.run(CASE, locate("native-local")))
    monkeypatch.setattr(pool.deadlines, "case", 0.5)
    # Ready to run all the time, and nine times of ten without a processor.
    monkeypatch.setattr(cpu_wait, "waited", lambda _: {"a thread": 0.9 * time.monotonic()})
    assert is_right(CASE, pool.run(CASE, locate(faulty("LATE"))))


@pytest.mark.slow
def test_not_even_a_busy_machine_keeps_a_rank_for_ever(
    fault_of: Expect, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.deadlines, "case", 0.5)
    monkeypatch.setattr(cpu_wait, "waited", lambda _: {"a thread": 0.99 * time.monotonic()})
    fault = fault_of(faulty("SPINS"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    assert " on a busy machine, where it was ready to run and had no processor 9" in fault.summary
    assert fault.summary.endswith("--deadline allows more, nor did rank 0")


def test_a_death_is_seen_at_once_even_if_children_live_on(
    fault_of: Expect, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is not noticed by that.
    monkeypatch.setattr(pool.deadlines, "case", 10**4)
    fault = fault_of(faulty("LEAVES_CHILDREN"))
    assert (fault.kind, fault.rank) == (Kind.DIED, 1)
    assert fault.summary == "rank 1 died, exit status 7"
    assert fault.last_key == "case received"
    assert fault.ranks[1].startswith("rank 1: gone")


def test_a_rank_that_dies_by_itself_leaves_no_daemon_without_an_environment(
    fault_of: Expect,
) -> None:
    fault = fault_of(faulty("LEAVES_A_DAEMON_AND_DIES"))
    assert (fault.kind, fault.rank) == (Kind.DIED, 1)
    assert fault.last_key == "daemon"


def test_a_child_that_talks_on_does_not_keep_the_controller_from_a_death(
    fault_of: Expect,
) -> None:
    fault = fault_of(faulty("LEAVES_A_TALKER"))
    assert fault.summary == "rank 1 died, exit status 7"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rank", "last_key", "where", "parted"),
    [
        (
            *("EXTRA_COLLECTIVE_FIRST", None, "", "sp"),
            "rank 0 entered all_reduce of shape [3]; rank 1 entered all_gather of shape [1]",
        ),
        ("SKIPS_LAST", 0, "loss", "world", "; rank 1 never came"),
    ],
)
def test_ranks_that_count_collectives_differently_are_told_where_they_part(
    fault_of: Expect, name: str, rank: int | None, last_key: str, where: str, parted: str
) -> None:
    fault = fault_of(faulty(name))
    assert (fault.kind, fault.rank) == (Kind.HUNG, rank)
    first = fault.ranks[0]
    assert first.startswith("collective #")
    assert f" on {where} of 1x2, ranks 0,1: " in first
    assert first.endswith(parted)
    assert fault.last_key == last_key
    if rank is not None:
        assert fault.ranks[2] == "rank 1: finished"


def test_an_abort_over_mismatched_collectives_says_where_it_was_called(fault_of: Expect) -> None:
    fault = fault_of(faulty("SKIPS_COLLECTIVE"))
    # gloo ends the process that receives more than it asked for.
    assert (fault.kind, fault.rank) == (Kind.DIED, 0)
    assert "SIGABRT" in fault.summary
    assert "in reported" in fault.stacks[0]
    assert "collective mismatch" in fault.log


def test_what_a_rank_raises_is_told_with_its_last_key_and_every_stack(fault_of: Expect) -> None:
    fault = fault_of(faulty("BAD_TOKENS"))
    assert (fault.kind, fault.rank, fault.last_key) == (Kind.RAISED, 1, "nll")
    assert "BadFragment: key 'nll': token numbers reach from 1000000" in fault.summary
    assert "in say_bad_tokens" in fault.stacks[1]
    assert "in check_peers" in fault.stacks[0]


def test_nothing_of_earlier_ranks_is_told_as_the_log_of_later_ones(fault_of: Expect) -> None:
    logs = [fault_of(faulty("PEERS_DIFFER")).log for _ in range(2)]
    assert logs == ["", ""]


def test_who_leaves_by_himself_raised_and_is_not_quoted_at_length(fault_of: Expect) -> None:
    fault = fault_of(faulty("LEAVES_WITH_A_LONG_WORD"))
    assert (fault.kind, fault.rank) == (Kind.RAISED, 1)
    assert fault.summary.startswith("rank 1 raised SystemExit: so long so long")
    assert len(fault.summary) < 2 * LONGEST
    assert "in leave_with_a_long_word" in fault.stacks[1]


def test_peers_with_different_rows_are_caught_before_the_model_runs(fault_of: Expect) -> None:
    fault = fault_of(faulty("PEERS_DIFFER"))
    assert fault.kind is Kind.RAISED
    assert "PeersDiffer: sequence-parallel peers hold different rows" in fault.summary
    assert fault.last_key == "case received"


def test_words_that_no_honest_rank_sends_are_named(fault_of: Expect) -> None:
    fault = fault_of(faulty("TALKS_GARBAGE"))
    assert (fault.kind, fault.rank) == (Kind.PROTOCOL, 1)
    assert fault.summary.startswith("rank 1 talks garbage: a frame ")
    assert "here it comes" in fault.log
    assert fault.ranks[0].startswith("rank 0: ")


def test_a_rank_that_is_stopped_in_the_middle_of_a_case_is_named(fault_of: Expect) -> None:
    fault = fault_of(faulty("STOPS"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    assert fault.ranks[1].startswith("rank 1: gone or not answering")
    assert 1 not in fault.stacks
    assert "in sleep\n" in fault.stacks[0]


@pytest.mark.slow
def test_a_supervisor_killed_under_a_case_is_named(fault_of: Expect) -> None:
    fault = fault_of(faulty("KILLS_ITS_SUPERVISOR"))
    assert (fault.kind, fault.rank) == (Kind.LAUNCHER, None)
    assert fault.summary == "the supervisor of the ranks ended, killed by SIGKILL"
    assert set(fault.stacks) == {0, 1}


def test_a_rank_killed_while_idle_is_a_fault_of_the_next_case(
    fault_of: Expect, pool: RankPool
) -> None:
    assert is_right(CASE, pool.run(CASE, locate("native-local")))
    progress = Path(address_of(pool.pids()[0])).parent / "progress.1"
    assert eventually(lambda: b"between cases" in progress.read_bytes())
    with ended(pool.pids()[2]):
        os.kill(pool.pids()[2], signal.SIGKILL)
    # Also where that case would not have needed the rank.
    fault = fault_of("native-local", ALONE)
    assert (fault.kind, fault.rank) == (Kind.DIED, 1)
    assert fault.summary == "rank 1 died, killed by SIGKILL"
    assert fault.last_key == "between cases"


def test_a_supervisor_that_cannot_be_watched_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_IDLE", [])
    seen: list[int] = []

    def refuses(pid: int) -> int:
        seen.append(pid)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(supervisor, "exit_handle", refuses)
    with RankPool(2) as pool, pytest.raises(OSError, match="too many open files"):
        pool.start()
    (pid,) = seen
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["handles for processes", "forks"])
def test_a_death_is_told_alike_where_the_kernel_has_no_handles_and_where_nobody_forks(
    lacking: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    if lacking == "forks":
        monkeypatch.setattr("harness.ranks.host.forks", lambda _: False)
    else:
        monkeypatch.setattr(os, "pidfd_open", refuses)
    with RankPool(2) as pool:
        assert is_right(CASE, pool.run(CASE, locate("native-local")))
        address = address_of(pool.pids()[0])
        os.kill(pool.pids()[2], signal.SIGKILL)
        fault = pool.run(CASE, locate("native-local"))
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.summary) == (Kind.DIED, "rank 1 died, killed by SIGKILL")
    assert left_behind(address) == []


def test_of_what_happens_at_once_nothing_is_missed(fault_of: Expect, pool: RankPool) -> None:
    del fault_of
    with ended(pool.pids()[2]):
        pool.submit(CASE, locate(faulty("RAISES_THEN_DIES")))
    fault = pool.collect()
    assert isinstance(fault, Fault)
    assert fault.summary == "rank 1 died, killed by SIGKILL"
    assert "rank 0: raised ValueError: as planned" in fault.ranks[0]


def test_cases_behind_a_faulty_one_come_out_right_and_in_order(
    fault_of: Expect, pool: RankPool
) -> None:
    del fault_of  # for what it asserts afterwards
    cases = [CASE, parse("case/1 rows=5:11111 sp=2"), parse("case/1 rows=2:11,2:11,2:11 sp=2")]
    for case, name in zip(cases, [faulty("DIES"), *["native-local"] * 2], strict=True):
        pool.submit(case, locate(name))
    first, *others = [pool.collect() for _ in cases]
    assert isinstance(first, Fault)
    assert first.summary == "rank 1 died, killed by SIGKILL"
    assert [is_right(case, o) for case, o in zip(cases[1:], others, strict=True)] == [True, True]


@pytest.mark.slow
def test_a_case_is_not_blamed_for_what_a_later_one_does(fault_of: Expect, pool: RankPool) -> None:
    del fault_of
    # Rank 0 is done with the first case, and fails in the second, before rank 1 is done.
    pool.submit(CASE, locate(faulty("LATE")))
    pool.submit(ALONE, locate(faulty("RANK_0_RAISES")))
    assert is_right(CASE, pool.collect())
    fault = pool.collect()
    assert isinstance(fault, Fault)
    assert fault.summary == "rank 0 raised ValueError: as planned"
    pool.start()


def test_time_in_which_nobody_listened_is_not_held_against_the_ranks(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a socket takes at once: the ranks cannot finish before they are heard.
    case = parse("case/1 rows=3:111,4:1011 heads=4/2 dim=64 layers=2 sp=2")
    assert pool.wait_until_ready() is None
    pool.submit(case, locate("native-local"))
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * DEADLINE)
    monkeypatch.setattr(dispatcher, "time", later)
    assert is_right(case, pool.collect())
