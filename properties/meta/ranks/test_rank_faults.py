"""Every failure of a rank becomes a fault that names it, in time, and leaves nothing behind."""

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
from harness.processes import cpu_wait
from harness.rank_program.case_loop import LONGEST_LINE
from harness.ranks import dispatcher
from harness.ranks.pool import RankPool
from harness.supervision import supervisor
from harness.trace import Assembly, Fault, Kind, Outcome
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
def wait_for_end(pid: int) -> Iterator[None]:
    """Wait until a process that is killed in the block has ended and has closed its files."""
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
    """Run a case that must end in a fault; afterwards the same pool must work again."""
    assert pool.wait_until_ready() is None
    address, launches = address_of(pool.pids()[0]), pool.launches

    def run(candidate: str, case: Case = CASE) -> Fault:
        started = time.monotonic()
        outcome = pool.run(case, locate(candidate))
        assert isinstance(outcome, Fault)
        assert time.monotonic() - started < DEADLINE + MARGIN
        return outcome

    yield run
    # The test may have started further launches.
    pool.kill()
    assert left_behind(address) == []
    assert is_right(CASE, pool.run(CASE, locate("native-local")))
    assert pool.launches > launches


@pytest.mark.slow
def test_a_rank_that_spins_is_named_with_its_stack(
    fault_of: Expect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Let this machine count as idle.
    monkeypatch.setattr(cpu_wait, "seconds_waited", lambda _: {})
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
def test_the_stack_of_a_thread_that_python_did_not_start_comes_last(
    fault_of: Expect,
) -> None:
    fault = fault_of(faulty("SLEEPS_ELSEWHERE"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    main, _, other = fault.stacks[1].partition("  thread torch's ")
    assert "in sleep_elsewhere\n" in main
    assert "in sleep\n" in other


@pytest.mark.slow
@pytest.mark.parametrize("name", ["IMPORTS_SLOWLY", "IMPORTS_ELSEWHERE"])
def test_a_rank_that_imports_a_library_does_not_count_as_hanging(
    pool: RankPool, name: str
) -> None:
    started = time.monotonic()
    assert is_right(CASE, pool.run(CASE, locate(faulty(name))))
    assert time.monotonic() - started > DEADLINE, "the import took too little time for this test"


@pytest.mark.slow
def test_an_import_that_never_ends_is_a_fault_that_names_the_module(
    fault_of: Expect, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.deadlines, "case", 2.0)
    monkeypatch.setattr(pool.deadlines, "start", 3.0)
    fault = fault_of(faulty("NEVER_IMPORTED"))
    assert (fault.kind, fault.rank) == (Kind.START, 1)
    assert fault.summary == "rank 1 still imported endless after 3 s"
    assert "in exec_module" in fault.stacks[1]


@pytest.mark.slow
def test_time_without_a_processor_does_not_count_towards_the_deadline(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_right(CASE, pool.run(CASE, locate("native-local")))
    monkeypatch.setattr(pool.deadlines, "case", 0.5)
    # A thread that is ready all the time, and has no processor nine tenths of it.
    monkeypatch.setattr(cpu_wait, "seconds_waited", lambda _: {"a thread": 0.9 * time.monotonic()})
    assert is_right(CASE, pool.run(CASE, locate(faulty("LATE"))))


@pytest.mark.slow
def test_a_hanging_rank_is_a_fault_on_a_busy_machine_too(
    fault_of: Expect, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.deadlines, "case", 0.5)
    monkeypatch.setattr(
        cpu_wait, "seconds_waited", lambda _: {"a thread": 0.99 * time.monotonic()}
    )
    fault = fault_of(faulty("SPINS"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    assert " on a busy machine, where it was ready to run and had no processor 9" in fault.summary
    assert fault.summary.endswith("--deadline allows more, nor did rank 0")


@pytest.mark.slow
def test_the_end_of_a_rank_is_noticed_at_once_though_its_children_live_on(
    fault_of: Expect, pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No deadline can notice it.
    monkeypatch.setattr(pool.deadlines, "case", 10**4)
    fault = fault_of(faulty("LEAVES_CHILDREN"))
    assert (fault.kind, fault.rank) == (Kind.DIED, 1)
    assert fault.summary == "rank 1 died, exit status 7"
    assert fault.last_key == "case received"
    assert fault.ranks[1].startswith("rank 1: gone")


@pytest.mark.slow
def test_a_dying_rank_leaves_no_daemon_even_one_without_an_environment(
    fault_of: Expect,
) -> None:
    fault = fault_of(faulty("LEAVES_A_DAEMON_AND_DIES"))
    assert (fault.kind, fault.rank) == (Kind.DIED, 1)
    assert fault.last_key == "daemon"


def test_a_child_that_keeps_sending_does_not_hide_the_end_of_its_rank(
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
def test_a_fault_shows_where_the_collectives_of_ranks_part(
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


def test_an_abort_over_mismatched_collectives_shows_the_stack_that_called_it(
    fault_of: Expect,
) -> None:
    fault = fault_of(faulty("SKIPS_COLLECTIVE"))
    # gloo aborts a process that receives more than it expects.
    assert (fault.kind, fault.rank) == (Kind.DIED, 0)
    assert "SIGABRT" in fault.summary
    assert "in reported" in fault.stacks[0]
    assert "collective mismatch" in fault.log


def test_an_exception_is_a_fault_with_the_last_key_and_every_stack(fault_of: Expect) -> None:
    fault = fault_of(faulty("BAD_TOKENS"))
    assert (fault.kind, fault.rank, fault.last_key) == (Kind.RAISED, 1, "nll")
    assert "BadFragment: key 'nll': token numbers reach from 1000000" in fault.summary
    assert "in say_bad_tokens" in fault.stacks[1]
    assert "in check_peers" in fault.stacks[0]


def test_the_log_of_a_fault_has_nothing_of_earlier_ranks(fault_of: Expect) -> None:
    logs = [fault_of(faulty("PEERS_DIFFER")).log for _ in range(2)]
    assert logs == ["", ""]


def test_a_system_exit_is_an_exception_and_its_long_text_is_cut(fault_of: Expect) -> None:
    fault = fault_of(faulty("LEAVES_WITH_A_LONG_WORD"))
    assert (fault.kind, fault.rank) == (Kind.RAISED, 1)
    assert fault.summary.startswith("rank 1 raised SystemExit: so long so long")
    assert len(fault.summary) < LONGEST_LINE + 20
    assert fault.summary.endswith(" …")
    assert len(fault.stacks[1]) > LONGEST_LINE
    assert "in leave_with_a_long_word" in fault.stacks[1]


def test_peers_with_different_rows_are_a_fault_before_the_model_runs(fault_of: Expect) -> None:
    fault = fault_of(faulty("PEERS_DIFFER"))
    assert fault.kind is Kind.RAISED
    assert "PeersDiffer: sequence-parallel peers hold different rows" in fault.summary
    assert fault.last_key == "case received"


def test_a_rank_that_sends_garbage_is_named(fault_of: Expect) -> None:
    fault = fault_of(faulty("TALKS_GARBAGE"))
    assert (fault.kind, fault.rank) == (Kind.PROTOCOL, 1)
    assert fault.summary.startswith("rank 1 talks garbage: a frame ")
    assert "here it comes" in fault.log
    assert fault.ranks[0].startswith("rank 0: ")


@pytest.mark.slow
def test_a_rank_that_is_stopped_in_the_middle_of_a_case_is_named(fault_of: Expect) -> None:
    fault = fault_of(faulty("STOPS"))
    assert (fault.kind, fault.rank) == (Kind.HUNG, 1)
    assert fault.ranks[1].startswith("rank 1: gone or not answering")
    assert 1 not in fault.stacks
    assert "in sleep\n" in fault.stacks[0]


@pytest.mark.slow
def test_a_supervisor_that_is_killed_during_a_case_is_named(fault_of: Expect) -> None:
    fault = fault_of(faulty("KILLS_ITS_SUPERVISOR"))
    assert (fault.kind, fault.rank) == (Kind.LAUNCHER, None)
    assert fault.summary == "the supervisor of the ranks ended, killed by SIGKILL"
    assert set(fault.stacks) == {0, 1}


def test_the_death_of_an_idle_rank_is_a_fault_of_the_next_case(
    fault_of: Expect, pool: RankPool
) -> None:
    assert is_right(CASE, pool.run(CASE, locate("native-local")))
    progress = Path(address_of(pool.pids()[0])).parent / "progress.1"
    assert eventually(lambda: b"between cases" in progress.read_bytes())
    with wait_for_end(pool.pids()[2]):
        os.kill(pool.pids()[2], signal.SIGKILL)
    # The next case would not even need the rank.
    fault = fault_of("native-local", ALONE)
    assert (fault.kind, fault.rank) == (Kind.DIED, 1)
    assert fault.summary == "rank 1 died, killed by SIGKILL"
    assert fault.last_key == "between cases"


def test_a_supervisor_that_cannot_be_watched_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_IDLE", [])
    pids: list[int] = []

    def refuses(pid: int) -> int:
        pids.append(pid)
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(supervisor, "exit_handle", refuses)
    with RankPool(2) as pool, pytest.raises(OSError, match="too many open files"):
        pool.start()
    (pid,) = pids
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["handles for processes", "forks"])
def test_a_death_is_reported_the_same_without_process_handles_and_without_forks(
    lacking: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    if lacking == "forks":
        monkeypatch.setattr("harness.supervision.host.should_fork", lambda _: False)
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


def test_two_incidents_at_the_same_time_are_both_in_the_fault(
    fault_of: Expect, pool: RankPool
) -> None:
    del fault_of
    with wait_for_end(pool.pids()[2]):
        pool.submit(CASE, locate(faulty("RAISES_THEN_DIES")))
    fault = pool.collect()
    assert isinstance(fault, Fault)
    assert fault.summary == "rank 1 died, killed by SIGKILL"
    assert "rank 0: raised ValueError: as planned" in fault.ranks[0]


def test_the_cases_behind_a_faulty_one_come_out_right_and_in_order(
    fault_of: Expect, pool: RankPool
) -> None:
    del fault_of  # Its checks after the test are all that is needed.
    cases = [CASE, parse("case/1 rows=5:11111 sp=2"), parse("case/1 rows=2:11,2:11,2:11 sp=2")]
    for case, name in zip(cases, [faulty("DIES"), *["native-local"] * 2], strict=True):
        pool.submit(case, locate(name))
    first, *others = [pool.collect() for _ in cases]
    assert isinstance(first, Fault)
    assert first.summary == "rank 1 died, killed by SIGKILL"
    assert [is_right(case, o) for case, o in zip(cases[1:], others, strict=True)] == [True, True]


@pytest.mark.slow
def test_a_case_is_not_blamed_for_the_failure_of_a_later_one(
    fault_of: Expect, pool: RankPool
) -> None:
    del fault_of
    # Rank 0 finishes the first case and fails in the second before rank 1 finishes the first.
    pool.submit(CASE, locate(faulty("LATE")))
    pool.submit(ALONE, locate(faulty("RANK_0_RAISES")))
    assert is_right(CASE, pool.collect())
    fault = pool.collect()
    assert isinstance(fault, Fault)
    assert fault.summary == "rank 0 raised ValueError: as planned"
    pool.start()


def test_time_before_the_caller_waits_does_not_count_towards_the_deadline(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Answers larger than a socket's buffer: ranks cannot finish before the controller reads.
    case = parse("case/1 rows=3:111,4:1011 heads=4/2 dim=64 layers=2 sp=2")
    assert pool.wait_until_ready() is None
    pool.submit(case, locate("native-local"))
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 2 * DEADLINE)
    monkeypatch.setattr(dispatcher, "time", later)
    assert is_right(case, pool.collect())
