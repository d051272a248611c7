"""A candidate's own code runs on ranks only; the controller reports whatever it does there."""

from pathlib import Path

import pytest

from harness.cli import main

pytest_plugins = ["properties.helpers.own_pool"]
pytestmark = pytest.mark.usefixtures("own_pool")

LINE = "case/1 rows=3:111 sp=2"
USAGE, FAULT = 2, 3
# An instance of its own: later tests run the harness's own candidates on these ranks.
LIMITED = """from harness.candidates.own.native import LocalDialect
MINE = LocalDialect()
MINE.limits = {!r}"""
LIMITS = (
    *("dtype=float32", "layers=1 windows=none", ["sp=2"]),
    *("heads=4/4", "dtype=fp32, bf16", "dp=1 dp=2", "window=None"),
)
FILES = {
    "broken.py": "def (",
    "raises.py": "raise RuntimeError('first line\\nsecond line')",
    "leaves.py": "import sys; sys.exit(0)",
    "empty.py": "",
    "idle.py": "class Idle:\n    name = 'idle'\n    def supports(self, case): ...\nIDLE = Idle()",
    **{f"limits-{number}.py": LIMITED.format(limits) for number, limits in enumerate(LIMITS)},
    "kind.py": "from harness.candidates.own.native import GATHER, GatherDialect as Kind",
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("command", [("repro", LINE), ("check", "--cases", "1", "--ranks", "2")])
@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("broken.py:X", "broken.py does not import: SyntaxError"),
        ("raises.py:X", "raises.py does not import: RuntimeError: first line"),
        ("leaves.py:X", "leaves.py does not import: SystemExit"),
        ("empty.py:X", "empty.py has no attribute 'X'"),
        ("empty.py:", "empty.py has no attribute ''"),
        ("kind.py:GATHR", "kind.py has no attribute 'GATHR'; near: GATHER"),
        ("idle.py:IDLE", "IDLE lacks 'run'"),
        ("limits-0.py:MINE", "dtype=float32: dtype='float32': use one of fp64, fp32, bf16, fp16"),
        ("limits-1.py:MINE", "windows=none: a case has no such field to be stated; near: window"),
        ("limits-2.py:MINE", "limits=['sp=2']: must be a text, such as 'loss=token-mean steps=1'"),
        (
            "limits-3.py:MINE",
            "heads=4/4: heads cannot be stated; a step refuses cases in supports",
        ),
        (
            "limits-4.py:MINE",
            "dtype=fp32,: ends with a comma; write a list without blanks, ",
        ),
        ("limits-5.py:MINE", "limits=dp=1 dp=2: dp is stated twice; put all values in one"),
        (
            "limits-6.py:MINE",
            "window=None: window=None: use a whole number; or none",
        ),
        ("kind.py:Kind", "Kind is a class; name an instance of it"),
        ("no.such.module:X", "module 'no.such.module' does not import: ModuleNotFoundError"),
        ("harness.case:X", "harness.case has no attribute 'X'"),
    ],
)
def test_a_file_or_attribute_that_is_no_candidate_is_refused_in_one_line(
    command: tuple[str, ...], candidate: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = candidate.partition(":")[0]
    if name in FILES:
        Path(name).write_text(FILES[name])
    assert main([*command, "--candidate", candidate]) == USAGE
    printed = capsys.readouterr().err
    assert printed.startswith(f"harness: candidate={candidate}: {message}")
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("no_rank")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"def (", "SyntaxError: invalid syntax (mine.py, line 1)"),
        (b"\0", "SyntaxError: source code string cannot contain null bytes"),
        (b"'\\d'\nreturn", "SyntaxError: 'return' outside function (mine.py, line 2)"),
        (b"'\xff'", "(unicode error) 'utf-8' codec can't decode byte"),
    ],
)
@pytest.mark.parametrize("option", ["--candidate", "--against"])
def test_a_file_that_is_no_python_is_refused_before_any_rank_starts(
    text: bytes, error: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_bytes(text)
    assert main(["check", option, "mine.py:X"]) == USAGE
    message = capsys.readouterr().err
    assert f"{option.strip('-')}=mine.py:X: mine.py does not import: " in message
    assert error in message


STEP = """
import ctypes, os, sys
from harness.candidates.own.native import LocalDialect

{at_import}

class Mine(LocalDialect):
    name = "mine"

    def supports(self, case):
        {in_supports}

MINE = Mine()
"""


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("at_import", "in_supports", "message"),
    [
        ("int(os.environ['RANK']) or os._exit(0)", "", "rank 0 died, exit status 0"),
        (
            *("", "return None if int(os.environ['RANK']) else os._exit(0)"),
            "rank 0 died, exit status 0",
        ),
        ("", "ctypes.string_at(0)", "died, killed by SIGSEGV"),
        ("", "sys.exit(0)", "raised SystemExit: 0"),
        ("", "return False", "raised TypeError: supports() returned False; return None, or say"),
        (
            *("", "return None if int(os.environ['RANK']) else 'no zeros'"),
            "rank 0 refuses the case, and not all others do: no zeros",
        ),
    ],
)
def test_a_candidate_that_ends_or_disrupts_a_rank_is_a_fault(
    at_import: str, in_supports: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(
        STEP.format(at_import=at_import, in_supports=in_supports or "return None")
    )
    assert main(["repro", LINE, "--candidate", "mine.py:MINE", "--deadline", "3"]) == FAULT
    printed = capsys.readouterr()
    assert message in printed.out + printed.err


def test_cases_outside_the_limits_of_a_candidate_are_not_judged_but_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(
        STEP.format(at_import="", in_supports="return None")
        + "Mine.limits = 'model=qwen3 loss=token-mean'\n"
    )
    asked = ["--cases", "5", "--sp", "2", "--dp", "1", "--candidate", "mine.py:MINE"]
    assert main(["check", *asked]) == 0
    output = capsys.readouterr().out
    assert "\nmine.py:MINE does not support, of 10 cases that were drawn\n" in output
    assert "\n    5  its limits are model=qwen3\n" in output


def test_the_reason_for_a_refusal_is_printed_in_the_words_of_the_candidate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("mine.py").write_text(STEP.format(at_import="", in_supports="return 'not on Mondays'"))
    assert main(["repro", LINE, "--candidate", "mine.py:MINE"]) == FAULT
    output = capsys.readouterr().out
    assert "UNSUPPORTED candidate mine.py:MINE" in output
    assert "why     not on Mondays" in output
