"""Facts about processes are read from /proc."""

import errno
import os
import select
from pathlib import Path

import pytest

from harness.processes.descendants import stat_fields
from harness.processes.process_exit import exit_handle

DEADLINE = 20.0


def test_the_fields_begin_with_the_state_whatever_the_name_of_the_process() -> None:
    state, parent, *_ = stat_fields(os.getpid())
    assert (state, parent) == ("R", str(os.getppid()))


def test_a_process_that_ends_while_its_file_is_read_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(_pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    # Only for this process: threads may be watching others.
    own, read = Path(f"/proc/{os.getpid()}/stat"), Path.read_text
    monkeypatch.setattr(os, "pidfd_open", refuses)
    monkeypatch.setattr(Path, "read_text", lambda path: "" if path == own else read(path))
    with pytest.raises(ProcessLookupError):
        stat_fields(os.getpid())
    handle = exit_handle(os.getpid())
    assert select.select([handle], [], [], DEADLINE)[0]
    os.close(handle)
