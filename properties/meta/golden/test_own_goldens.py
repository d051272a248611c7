"""Own goldens hold what a step with a model or a loss of its own computes at sp 1."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.case import parse
from harness.cli import main
from harness.golden import Store, Vector, examine, own
from harness.golden.tensors import CANDIDATE
from harness.judge import Session
from harness.ranks.pool import RankPool
from harness.trace import Fault, Kind, Trace, Unsupported
from properties.helpers.places import PLANTED
from properties.helpers.stores import CASES, made_otherwise, on_disk, stored_in

# Its gradients are twice those of plain training at every sp, which its own goldens hold.
MINE = f"{PLANTED / 'alone.py'}:TWICE_EVERYTHING"
NAME, COMMENT = "two-rows", ("--comment", "It is mine.")
pytestmark = pytest.mark.usefixtures("shared_ranks")
TO_ITSELF = ("--against", "self", "--candidate")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a store with one golden of what MINE computes at sp 1."""
    place = tmp_path / "mine"
    assert golden("add", place, NAME, CASES[NAME], *COMMENT, *TO_ITSELF, MINE) == 0
    return place


def golden(command: str, folder: Path, *words: str) -> int:
    return main(["golden", command, *words, "--store", str(folder)])


def rename_candidate(candidate: str, folder: Path) -> None:
    """Store the goldens as goldens of another candidate."""
    made_otherwise(folder, **{CANDIDATE: candidate})


def verify(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = golden("verify", folder, *words, "--json")
    return status, json.loads(capsys.readouterr().out)


def test_an_own_golden_names_its_candidate_and_holds_what_it_computes_at_sp_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, _ = examine(Store(folder).files())
    plain, _ = examine(stored_in(tmp_path / "plain").files())
    made = own[NAME].stored.made
    assert (made["candidate"], made["against"], made["device"]) == (MINE, "self", "cpu")
    mine, oracle = own[NAME].stored.trace, plain[NAME].stored.trace
    assert set(mine) == set(oracle)
    assert mine["grad.head"].values == pytest.approx(2 * oracle["grad.head"].values)
    capsys.readouterr()
    assert golden("list", folder) == 0
    assert f"{NAME}  7 tokens, of {MINE}" in capsys.readouterr().out.replace("\n", "")


def test_a_right_step_agrees_with_its_own_goldens_on_every_mesh(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--candidate", MINE, "--dtype", "fp64,bf16")
    status, document = verify(folder, capsys, *words)
    assert status == 0
    # At sp 2 with one replica and with two, in two dtypes; heads=2 cannot be cut further.
    assert document["against"] == {"self": 4}
    assert document["unconfirmed"] == {}


@pytest.mark.parametrize("command", ["verify", "diff", "generate"])
def test_code_that_a_golden_names_runs_only_if_the_user_names_it_too(
    command: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = tmp_path / "payload.py"
    payload.write_text("raise AssertionError('it was run')")
    rename_candidate(f"{payload}:X", folder)
    assert golden(command, folder) == 2
    assert f"{payload}:X, whose code is not run unasked" in capsys.readouterr().err


def test_naming_a_candidate_without_a_golden_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert golden("verify", folder, "--candidate", MINE, "--candidate", "native-local") == 2
    assert "--candidate=native-local: the goldens in " in capsys.readouterr().err


def test_other_keys_than_losses_and_gradients_are_not_stored_but_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidate = MINE.replace("TWICE_EVERYTHING", "SHOWS_MORE")
    assert golden("add", tmp_path, NAME, CASES[NAME], *COMMENT, *TO_ITSELF, candidate) == 0
    status, document = verify(tmp_path, capsys, "--candidate", candidate)
    assert (status, document["unconfirmed"]) == (0, {})
    assert "metric.reward" in document["uncompared"][candidate]
    assert golden("verify", tmp_path, "--candidate", candidate) == 0
    assert "emitted, and not compared: " in capsys.readouterr().out
    assert golden("diff", tmp_path, "--candidate", candidate) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "attribute", "status"),
    # First the old step in another file, then another step.
    [
        ("properties.planted.alone", "TWICE_EVERYTHING", 0),
        ("harness.candidates.own.native", "LOCAL", 1),
    ],
)
def test_a_step_in_another_file_is_compared_with_the_goldens_of_the_old_one(
    module: str,
    attribute: str,
    status: int,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "new.py").write_text(f"from {module} import {attribute} as MINE")
    words = ("--candidate", f"{tmp_path / 'new.py'}:MINE")
    before = on_disk(folder)
    assert verify(folder, capsys, *words)[0] == status
    assert golden("diff", folder, *words) == status
    assert on_disk(folder) == before
    assert golden("generate", folder, *words, "--accept", "--reason", "it moved") == 0
    assert verify(folder, capsys, *words)[0] == 0


def test_a_bug_that_shows_only_at_a_larger_sp_is_found_and_its_replay_names_self(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (NAME, CASES[NAME], *COMMENT, *TO_ITSELF, "native-local")
    assert golden("add", tmp_path, *words) == 0
    rename_candidate("mutants.B14", tmp_path)
    status, document = verify(tmp_path, capsys)
    assert (status, document["verdict"], document["unconfirmed"]) == (1, "DIVERGED", {})
    failure = document["failures"][NAME]
    assert failure["looks"][0]["name"] == "label-rolled-locally"
    assert failure["against"] == "self"
    assert failure["replay"].endswith(" --candidate mutants.B14 --against self")


def test_a_step_that_changed_at_sp_1_is_unconfirmed_and_accepted_only_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (NAME, CASES[NAME], *COMMENT, *TO_ITSELF, "native-local")
    assert golden("add", tmp_path, *words) == 0
    rename_candidate(MINE, tmp_path)
    options = ("--candidate", MINE)
    status, document = verify(tmp_path, capsys, *options)
    assert status == 1
    assert f"{MINE} differs at sp 1: semantic change: " in document["unconfirmed"][NAME]
    # Sp 2 is compared with what the step computes at sp 1 now, so no run fails.
    assert document["verdict"] == "WITHIN"
    assert golden("diff", tmp_path, *options) == 1
    before = on_disk(tmp_path)
    assert golden("generate", tmp_path, *options) == 1
    assert on_disk(tmp_path) == before
    assert golden("generate", tmp_path, *options, "--accept", "--reason", "another loss") == 0
    assert verify(tmp_path, capsys, *options)[0] == 0
    assert golden("diff", tmp_path, *options) == 0


@pytest.mark.slow
def test_goldens_of_plain_training_lend_their_cases_to_a_step_that_is_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_in(tmp_path)
    assert verify(tmp_path, capsys, "--candidate", MINE)[0] == 1
    status, document = verify(tmp_path, capsys, *TO_ITSELF, MINE)
    assert (status, set(document["against"]), document["failures"]) == (0, {"self"}, {})
    status, document = verify(tmp_path, capsys, *TO_ITSELF, "mutants.B14")
    assert status == 1
    assert document["failures"][NAME]["replay"].endswith(" --against self")


def test_a_step_that_is_compared_with_itself_can_be_recorded_in_bf16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_in(tmp_path / "golden")
    out = tmp_path / "bf16"
    assert golden("generate", tmp_path / "golden", *TO_ITSELF, MINE, "--out", str(out)) == 0
    assert "two-steps: left out, sp 1 is what it is compared with" in capsys.readouterr().out
    status, document = verify(out, capsys, "--candidate", MINE)
    assert status == 0
    assert [each["change"] for each in document["goldens"]] == ["none", "none"]


@pytest.mark.parametrize(
    ("words", "status", "refusal"),
    [
        (["--against", "self"], 2, "--against=self: name the step with --candidate"),
        (["--candidate", MINE], 2, f"--against=plain: {MINE} has no recipe; use `--against self`"),
        ([*TO_ITSELF, MINE, "--hunts", "B14"], 2, "--hunts=B14: tells what differs from plain"),
        ([*TO_ITSELF, MINE.replace("TWICE_EVERYTHING", "REFUSES")], 2, "two ranks or more"),
        ([*TO_ITSELF, MINE.replace("TWICE_EVERYTHING", "RAISES")], 3, "no peers"),
        ([*TO_ITSELF, MINE.replace("EVERYTHING", "THE_LOSS")], 3, "is not the token-mean of its"),
    ],
)
def test_an_own_golden_that_cannot_be_made_is_refused_and_nothing_is_written(
    words: list[str], status: int, refusal: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert golden("add", tmp_path / "new", NAME, CASES[NAME], *COMMENT, *words) == status
    assert refusal in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--against", "plain"], "--against=plain: goldens in "),
        (["--sp", "1"], "--sp=1: is what --against self compares with"),
    ],
)
def test_verify_refuses_options_that_do_not_fit_own_goldens(
    words: list[str], refusal: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert golden("verify", folder, "--candidate", MINE, *words) == 2
    assert refusal in capsys.readouterr().err


@pytest.mark.parametrize(
    "outcome", [Unsupported("not today"), Fault(kind=Kind.RAISED, summary="rank 0 raised")]
)
def test_a_step_that_gives_no_numbers_at_sp_1_does_not_confirm_its_golden(
    outcome: Unsupported | Fault, harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "own_reference", lambda *_: outcome)
    vector = Vector(NAME, parse("case/1 rows=3:111 sp=2"), "any", (), (), "")
    golden = own.make(vector, Trace(), MINE, "self", {}, "")
    ((name, why),) = own.find_unconfirmed({NAME: golden}, Session(harness_pool))
    assert name == NAME
    assert why.startswith(f"{MINE} gives no numbers at sp 1: ")
