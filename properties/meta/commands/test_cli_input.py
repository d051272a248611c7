"""Bad input is refused with one line and status 2, before any rank starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from harness.cli import COMMANDS, GROUPS, app, main
from harness.commands.campaign_request import read_request
from properties.helpers.commands import options_of, run_to_end

pytestmark = pytest.mark.usefixtures("no_rank")

GOOD = "case/1 rows=3:111"
PASSED, USAGE, FAULT = 0, 2, 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with two broken bundles."""
    monkeypatch.chdir(tmp_path)
    for name in ("garbage", "nothing-in-it"):
        (tmp_path / name).mkdir()
    (tmp_path / "garbage" / "failure.json").write_text("{")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must refuse its arguments, and return its message."""
    assert main(arguments) == USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("harness: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("harness: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("case/1", "rows=nothing: "),
        ("rows=3:111 sp=2", "case=rows=3:111 sp=2: a case line starts with case/1"),
        ("case/1 rows=3:111\nsp=two", "sp=two: use a whole number"),
        ("rows=3:111\nsp=2", "case="),
        # This line is longer than any file name may be.
        ("case/1 rows=" + ",".join(["3:111"] * 1000) + " sp=3", "sp=3: heads=4 cannot be split"),
    ],
)
def test_a_bad_case_line_is_refused(
    line: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "repro", line)[: len(start)] == start


@pytest.mark.parametrize(
    ("bundle", "message"),
    [
        ("missing", "missing cannot be read: No such file or directory"),
        ("nothing-in-it", "failure.json cannot be read: No such file or directory"),
        ("garbage", "failure.json: is not a failure record"),
    ],
)
def test_an_unreadable_bundle_is_refused(
    bundle: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (bundle, str(folder / bundle)):
        assert refused(capsys, "repro", place).startswith(f"bundle={place}: {message}")


@pytest.mark.parametrize("command", [("repro", GOOD), ("check", "--cases", "1")])
@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("native", "not built in; use native-gather, "),
        ("gone.py:X", "there is no file gone.py"),
        ("mutants.B999", "there is no B999 in mutants; near: "),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_unknown_candidate_is_refused(
    command: tuple[str, ...], candidate: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    start = f"candidate={candidate}: {message}"
    assert refused(capsys, *command, "--candidate", candidate)[: len(start)] == start
    if ":" in candidate:
        # A file may be named without the option.
        assert refused(capsys, *command, candidate)[: len(start)] == start


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ("--sp x", "--sp=x: use whole numbers"),
        ("--sp 2,", "--sp=2,: use whole numbers"),
        ("--sp 0", "--sp=0: use numbers of at least 1"),
        ("--dp -1", "--dp=-1: use numbers of at least 1"),
        ("--sp 2000 --dp 1", "--sp=2000: "),
        ("--sp 1 --dp 2000", "--dp=2000: "),
        ("--sp 4,8 --dp 2 --ranks 7", "--ranks=7: --sp=8 needs 16 ranks; "),
        ("--sp 2 --dp 1,4 --ranks 4", "--ranks=4: --dp=4 needs 8 ranks; "),
        ("--ranks 1", "--ranks=1: no sequence can be shared; use at least 2 ranks"),
        ("--ranks 0", "--ranks=0: "),
        ("--cases 0", "--cases=0: at least one case must be examined"),
        ("--seed -1", "--seed=-1: use a whole number"),
        ("--shard 3", "--shard=3: use K/N, for example 3/16"),
        ("--shard 1/2/3", "--shard=1/2/3: use K/N"),
        ("--shard=-1/2", "--shard=-1/2: use K/N"),
        ("--shard 0/4", "--shard=0/4: use numbers from 1/4 to 4/4"),
        ("--shard 5/4", "--shard=5/4: use numbers from 1/4 to 4/4"),
        ("--shard 0/0", "--shard=0/0: "),
        ("--shard 1/8 --cases 7", "--shard=1/8: --cases=7 are too few for 8 shards"),
        ("--all-up-to 0", "--all-up-to=0: use a whole number from 1 to 8"),
        ("--all-up-to 9", "--all-up-to=9: use a whole number from 1 to 8"),
        ("--all-up-to 2 --cases 9", "--cases=9: --all-up-to has all there are; leave it out"),
        ("--all-up-to 1 --dp 2", "--all-up-to=1: there is no such case with what else is asked"),
        (
            "--all-up-to 1 --sp 2 --dp 1 --shard 1/10",
            "--shard=1/10: the 9 cases of --all-up-to=1 are too few for 10 shards",
        ),
        ("--dtype fp8", "--dtype=fp8: use one of fp64, "),
        ("--dtype fp64,,fp32", "--dtype=: use one of fp64, "),
        ("--set windw=3", "--set=windw=3: a case has no such field to be stated; near: window, "),
        ("--set sp=2", "--set=sp=2: sp has an option of its own; use that"),
        ("--set layers=", "--set=layers=: layers=nothing: use a whole number"),
        ("--set window=3,0", "--set=window=0: window=0: use a whole number of tokens"),
        ("--wrapper deepspeed", "--wrapper=deepspeed: use one of none, ddp, fsdp"),
    ],
)
def test_a_bad_option_of_check_is_refused(
    options: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, "check", *options.split())[: len(start)] == start


@pytest.mark.parametrize(
    ("options", "sps", "dps"),
    [
        ("--ranks 2", (1, 2), (1, 2)),
        # sp 1 is the reference here, and two replicas of sp 2 need four ranks.
        ("--ranks 2 --against self", (2,), (1,)),
        ("--ranks 4 --against self", (2, 4), (1, 2)),
    ],
)
def test_default_sizes_are_those_that_fit_the_ranks(
    options: str, sps: tuple[int, ...], dps: tuple[int, ...]
) -> None:
    request, ranks = read_request(options_of("check", *options.split()))
    assert (request.sps, request.dps, ranks) == (sps, dps, int(options.split()[1]))


def test_more_cases_than_can_be_drawn_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.campaign.case_source.draw_cases", lambda *_: iter(()))
    monkeypatch.setattr("harness.ranks.pool.RankPool.start", lambda _: None)
    message = refused(capsys, "check", "--cases", "9", "--shard", "2/3")
    start = "--cases=9: of 9 cases that are like this only 1 could be drawn; ask "
    assert message.startswith(start)


@pytest.mark.parametrize("command", [("repro", GOOD), ("check", "--cases", "1")])
@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_a_deadline_that_always_or_never_expires_is_refused(
    command: tuple[str, ...], seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, *command, f"--deadline={seconds}")
    assert message.startswith(f"--deadline={seconds}: use a number of seconds")


def test_fewer_ranks_than_a_case_needs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    line = "case/1 rows=3:111,1:1 sp=4 dp=2"
    message = refused(capsys, "repro", line, "--ranks", "7")
    assert message == "--ranks=7: sp*dp=4*2 needs 8 ranks"


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a CUDA device")
@pytest.mark.parametrize("command", [("repro", GOOD), ("check", "--cases", "1")])
def test_a_device_that_this_machine_lacks_is_refused(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, *command, "--device", "cuda")
    assert message.startswith("--device=cuda: ")
    assert message.endswith("finds no CUDA device; use cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "COMMAND: is missing; see `harness --help`"),
        ("golden", "COMMAND: is missing; see `harness golden --help`"),
        ("frobnicate", "frobnicate: there is no such command; see `harness --help`"),
        ("chek", "chek: there is no such command; did you mean check?"),
        ("golden verfy", "verfy: there is no such command; did you mean verify?"),
        ("repro", "CASE-LINE|BUNDLE: is missing; name one, or use --seed S"),
        ("repro one a.py:A --candidate b.py:B", "candidate=b.py:B and a.py:A: name one; "),
        ("repro a.py:ONE", "CASE-LINE|BUNDLE: is missing; name one, or use --seed S"),
        ("repro one --sp 2", "--sp=2: goes with --seed only"),
        ("merge", "DOCUMENT: needs a value; see `harness merge --help`"),
        ("merge one --json two", "two: is one too many; see `harness merge --help`"),
        ("golden add one case/1", "--comment: needs a value; see `harness golden add --help`"),
        ("check --cases", "--cases: needs a value; see `harness check --help`"),
        ("check --casees 3", "--casees: there is no such option; did you mean --cases?"),
        ("check --no-json", "--no-json: there is no such option; did you mean --json?"),
        ("check --json=so", "--json=so: takes no value; see `harness check --help`"),
        ("check --cases many", "--cases=many: at least one case must be examined; use a whole"),
        ("check --deadline soon", "--deadline=soon: use a number of seconds above zero"),
        ("check --limit 0", "--limit=0: use a number of seconds above zero"),
        ("check --limit nan", "--limit=nan: use a number of seconds above zero"),
        ("check --keep-going 0", "--keep-going=0: use how many failures to look for"),
        ("check --device tpu", "--device=tpu: use one of auto, cpu, cuda, npu, xpu, pretend"),
        ("conformance --device npu", "--device=npu: use one of auto, cpu, cuda"),
        ("golden generate --dtype fp64", "--dtype=fp64: use one of fp32, bf16, fp16"),
        ("golden verify --dtype fp8", "--dtype=fp8: use one of fp64, fp32, bf16, fp16"),
    ],
)
def test_words_that_the_parser_cannot_read_are_refused_in_one_sentence(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *arguments.split())[: len(message)] == message


@pytest.mark.parametrize("words", ["", *COMMANDS, *GROUPS, "golden verify", "golden add"])
def test_a_help_page_fits_into_80_columns(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "console", Console(width=80))
    assert main([*words.split(), "--help"]) == PASSED
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert page.rstrip().endswith("stopped by Ctrl-C or SIGTERM")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_knows_commands_options_and_values(shell: Any) -> None:
    script = app.generate_completion(shell=shell)
    assert all(word in script for word in ("conformance", "keep-going", "row-mean", "pretend"))


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_an_unexpected_exception_is_a_fault_with_one_sentence_and_a_file_with_the_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr("harness.doctor.examine", fails)
    assert main(["doctor", "--json"]) == FAULT
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "FAULT"
    message, _, file = printed.err.rstrip().partition("; in full in ")
    assert message.startswith(f"harness: nothing can be judged here: {type(error).__name__}")
    assert "\n" not in message
    assert "in fails\n    raise error" in Path(file).read_text()
    Path(file).unlink()


@pytest.mark.slow
def test_a_command_whose_output_goes_to_a_closed_pipe_is_a_fault() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "harness", "golden", "list"]
    with os.fdopen(writes) as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    message = b"harness: no reader is left for what this command prints; so the exit status is 3\n"
    assert (done.returncode, done.stderr) == (FAULT, message)


def test_a_command_without_a_standard_output_is_refused() -> None:
    done = run_to_end("bash", "-c", f"{sys.executable} -m harness golden list >&-")
    assert (done.returncode, done.stderr.count("\n")) == (USAGE, 1)
    assert done.stderr.startswith("harness: stdout is closed")


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", " --json"])
def test_a_command_whose_output_goes_to_a_full_disk_is_a_fault_with_one_message(
    options: str,
) -> None:
    done = run_to_end(
        "bash", "-c", f"{sys.executable} -m harness golden list{options} > /dev/full"
    )
    assert done.returncode == FAULT
    assert done.stderr.startswith("harness: nothing can be judged here: OSError: [Errno 28]")
    assert done.stderr.count("\n") == 1


def test_good_input_starts_a_rank() -> None:
    with pytest.raises(pytest.fail.Exception, match="a rank was started"):
        main(["repro", GOOD])


def test_if_an_option_is_given_twice_the_last_one_counts() -> None:
    twice = ["--sp=1,2", "--sp=4", "--dtype=bf16", "--dtype=fp64", "--cases=3", "--cases=5"]
    twice += ["--shard=1/2", "--shard=2/2", "--device=cpu", "--device=auto"]
    options = options_of("check", *twice)
    assert (options.sp, options.dtype, options.cases) == ((4,), ("fp64",), 5)
    assert (str(options.shard), options.device) == ("2/2", "auto")


def test_rows_that_are_asked_for_are_drawn_and_no_case_has_to_prove_them() -> None:
    options = options_of("check", "--set", "group=2", "--set", "layers=1,2")
    request, _ = read_request(options, step=options)
    assert request.stated == ("group=2", "layers=1,2")
    assert request.named == ("layers",)
