"""Recorded goldens distinguish another environment from another result."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from harness.candidates import locate
from harness.candidates.registry import require_trusted
from harness.case import parse
from harness.cli import main
from harness.golden import BadGolden, Store, examine, store_files
from harness.golden.recorded import record
from harness.golden.tensors import CANDIDATE
from harness.judge import Session
from harness.ranks.pool import RankPool
from properties.helpers.places import PLANTED
from properties.helpers.stores import PLACE, made_otherwise, on_disk, stored_in

GRADIENTS = PLANTED / "gradients.py"


@pytest.fixture
def folder(tmp_path: Path, harness_pool: RankPool, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with what native-local computes in bf16 on this machine."""
    monkeypatch.setattr(
        "harness.commands.golden.recorded.open_pool",
        lambda *_: contextlib.nullcontext(harness_pool),
    )
    stored_in(tmp_path / "golden")
    words = ["--dtype", "bf16", "--candidate", "native-local", "--out", str(tmp_path / "bf16")]
    assert main(["golden", "generate", "--store", str(tmp_path / "golden"), *words]) == 0
    return tmp_path / "bf16"


def verify(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, str]]:
    """Return the exit status, and by golden what changed and why."""
    capsys.readouterr()
    status = main(["golden", "verify", "--store", str(folder), "--json", *words])
    found = json.loads(capsys.readouterr().out)["goldens"]
    return status, {each["name"]: f"{each['change']}: {each['why']}" for each in found}


def test_nothing_changes_on_the_same_device(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = verify(folder, capsys)
    assert status == 0
    assert found == dict.fromkeys(("a-window", "two-rows", "two-steps"), "none: ")


def test_bits_from_another_environment_are_not_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_otherwise(folder, torch="1.0", gpu="an old one")
    status, found = verify(folder, capsys)
    assert status == 0
    for why in found.values():
        assert why.startswith("environment drift: torch 1.0 -> ")
        assert why.endswith("gpu an old one -> none")


# The other dialect sums in another order, so its bits differ within the budget.
@pytest.mark.slow
@pytest.mark.parametrize("candidate", ["native-gather", f"{GRADIENTS}:A_HUNDREDTH_MORE"])
def test_other_bits_in_an_unchanged_environment_count_as_changed(
    candidate: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_otherwise(folder, **{CANDIDATE: candidate})
    pages = tmp_path / "pages"
    status, found = verify(folder, capsys, "--candidate", candidate, "--report", str(pages))
    assert status == 1
    assert re.fullmatch(
        r"changed: \S+: \d+ of \d+ elements are not identical; 4 runs here agree in every bit, "
        "and nothing that is recorded of their environment has changed",
        found["two-rows"],
    )
    assert '<p class="verdict vDIVERGED">' in (pages / "goldens.html").read_text()


def test_a_step_whose_runs_differ_is_not_repeatable_and_not_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two runs of it agree, and the third shows that they differ.
    candidate = f"{GRADIENTS}:EVERY_THIRD_TIME_MORE"
    made_otherwise(folder, **{CANDIDATE: candidate})
    status, found = verify(folder, capsys, "--candidate", candidate)
    assert status == 0
    assert found["two-rows"].startswith("not repeatable: two runs here differ, so no bits are ")


def test_a_result_outside_its_budget_is_a_semantic_change(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_otherwise(folder, torch="1.0", **{CANDIDATE: "mutants.B101"})
    status, found = verify(folder, capsys, "--report", str(tmp_path / "pages"))
    assert status == 1
    assert found["two-rows"].startswith("semantic change: torch 1.0 -> ")
    goldens_page = (tmp_path / "pages" / "goldens.html").read_text()
    page = re.search(r'href="([^"]+)">two-rows<', goldens_page)
    assert page is not None
    assert "mutants.B101" in (tmp_path / "pages" / page[1]).read_text()


def test_code_that_a_store_names_runs_only_if_the_user_names_it_too(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = tmp_path / "payload.py"
    payload.write_text("raise AssertionError('it was run')")
    made_otherwise(folder, candidate=f"{payload}:X")
    assert main(["golden", "verify", "--store", str(folder)]) == 2
    assert f"{payload}:X, whose code is not run unasked" in capsys.readouterr().err
    assert require_trusted(f"{payload}:X", "a store", [f"{payload}:X"]) == f"{payload}:X"


def test_a_store_with_recorded_and_other_goldens_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, _ = examine(Store(folder).files())
    goldens, _ = examine(Store(tmp_path / "golden").files())
    Store(tmp_path / "both").write(
        store_files({**recorded, "two-rows": goldens["two-rows"]}),
    )
    assert main(["golden", "verify", "--store", str(tmp_path / "both")]) == 4
    assert "two-rows: it was not recorded, unlike others here" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["generate", "diff"])
def test_generate_and_diff_refuse_recorded_goldens(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = on_disk(folder)
    assert main(["golden", command, "--store", str(folder)]) == 4
    assert "was recorded on a device; only verify and list apply" in capsys.readouterr().err
    assert on_disk(folder) == before


def test_recording_into_a_folder_that_is_not_empty_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--store", str(tmp_path / "golden"), "--out", str(folder)]
    assert main(["golden", "generate", *words]) == 2
    assert "is not empty; name a new folder" in capsys.readouterr().err


def test_goldens_that_cannot_be_judged_or_run_are_left_out_with_the_reason(
    harness_pool: RankPool,
) -> None:
    goldens, _ = examine(Store(PLACE).files())
    chosen = {name: goldens[name] for name in ("uneven-mesh", "one-target")}
    # Its optimizer step is so large that the result cannot be judged in bf16.
    case = parse(
        "case/1 rows=10:0111000110:left ids=[4,4,7,5,2,3,22,10,22,6] layers=2 sp=1 dim=12 "
        "tied=1 loss=row-mean pad=1 steps=2 seed=1714"
    )
    golden = goldens["one-target"]
    chosen["far-off"] = replace(golden, vector=replace(golden.vector, case=case))
    recorded, left_out = record(
        chosen, locate("native-local"), "bf16", {"device": "cpu"}, "none", Session(harness_pool)
    )
    assert set(recorded) == {"one-target"}
    assert left_out["far-off"].startswith("not judgeable in bf16: the rounding of plain training ")
    assert left_out["uneven-mesh"] == "needs 6 ranks"


def test_a_wrong_candidate_is_not_recorded(harness_pool: RankPool) -> None:
    goldens, _ = examine(Store(PLACE).files())
    wrong = {"one-target": goldens["one-target"]}
    with pytest.raises(BadGolden, match=r"one-target: mutants\.B16 is DIVERGED on case/1"):
        record(
            wrong, locate("mutants.B16"), "bf16", {"device": "cpu"}, "none", Session(harness_pool)
        )
