"""The commands of a page run without the harness, and are kept as a terminal shows them."""

import re
import subprocess
from pathlib import Path

import pytest

from harness.candidates.published.library import libraries
from harness.conformance.scripts import TORCH, install, make, shell, statuses, transcript
from harness.conformance.upstream_reports import findings_of


def test_a_transcript_has_each_command_what_it_prints_and_its_exit_status(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("print('got 2')\nraise SystemExit(1)\n")
    first, second = 'python3 wrong.py; echo "exit status $?"', 'true; echo "exit status $?"'
    text = transcript([first, second], tmp_path)
    assert text == f"$ {first}\ngot 2\nexit status 1\n$ {second}\nexit status 0\n"
    assert statuses(text) == [1, 0]


def test_commands_see_nothing_of_the_harness_s_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "HARNESS_ENVIRONMENTS", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "ours")
    monkeypatch.setenv("PIP_FIND_LINKS", "theirs")
    assert shell("env | grep -c '=ours$' || true", tmp_path) == "0\n"
    assert shell("echo $PIP_FIND_LINKS; pwd", tmp_path) == f"theirs\n{tmp_path}\n"


def test_an_environment_is_not_made_if_one_of_its_commands_fails(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        make("false\ntouch made\n", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_commands_of_a_page_fit_it_and_name_every_pin_once() -> None:
    for library in filter(findings_of, libraries().values()):
        commands = install(library)
        assert max(map(len, commands.splitlines())) <= 96
        pins = [word for word in commands.replace("\\\n", "").split() if "==" in word]
        assert set(library.requirements) <= set(pins)
        assert len({pin.partition("==")[0] for pin in pins}) == len(pins)
        # Each command is one line to a shell, whatever the page does with it.
        assert re.findall(r"^\S+ \S+ \S+", commands, re.MULTILINE) == [
            f"python{library.python or '3.11'} -m venv",
            f"env/bin/pip install {TORCH}",
            "env/bin/pip install --no-deps",
        ]
