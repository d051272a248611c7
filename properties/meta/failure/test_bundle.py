"""A bundle keeps all that is known of a failure, in little room, and nothing that can run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from harness.campaign.request import Request, campaign_record
from harness.compare import Comparison, KeyResult, Look, Verdict, fault_comparison
from harness.compare.differing import MOST_BYTES as MOST_TENSORS
from harness.compare.differing import Kept
from harness.engine.lot import Part
from harness.failure.bundle import read_bundle, write_bundle
from harness.failure.bundle.keep import keep_bundle
from harness.failure.bundle.read import MOST_BYTES, RECORD, TENSORS
from harness.failure.signature import mark_of
from harness.ranks.pool import RankPool
from harness.report import explain
from harness.trace import Fault, Kind, Misfit, MisfitKind
from properties.helpers.bundles import CASE, FILES, LINE, make_comparison, wrong
from properties.helpers.comparisons import changed
from properties.helpers.judging import evaluate

REQUEST = Request(
    candidates=("mutants.B14",), sps=(2, 1), dps=(1,), dtypes=("fp64",), losses=("row-mean",),
    count=7, seed=5,
)  # fmt: skip
LOUD = """
from harness.candidates.own.native import LocalDialect

class Loud(LocalDialect):
    name = "loud"

    def run(self, case, rank, emit):
        print("here is rank", rank.index, flush=True)
        if rank.index == 1:
            raise ValueError("as planned")
        super().run(case, rank, emit)

LOUD = Loud()
"""


@pytest.fixture(scope="module")
def diverged(harness_pool: RankPool) -> Comparison:
    return evaluate(CASE, "mutants.B14", harness_pool)


def test_the_bundle_of_a_divergence_has_its_record_its_texts_and_its_origin(
    diverged: Comparison, harness_pool: RankPool, tmp_path: Path
) -> None:
    place = Path(
        keep_bundle(
            changed(diverged, before=(CASE, CASE)),
            harness_pool,
            campaign=campaign_record(REQUEST, Part(2, 3)),
            test="test_it.py::test_it",
            blob="@reproduce_failure('1', b'2')",
            folder=tmp_path / "kept",
        )
    )
    assert place == tmp_path / "kept" / f"{CASE.id}-mutants.B14"
    assert {file.name for file in place.iterdir()} == FILES
    record = json.loads((place / RECORD).read_text())
    assert record["case"] == LINE
    assert record["before"] == [LINE, LINE]
    assert (record["candidate"], record["verdict"]) == ("mutants.B14", "DIVERGED")
    assert record["first"]["key"] == "labels"
    assert record["mark"]["root"] == record["looks"][0]["name"] == "label-rolled-locally"
    assert record["left_out"] == []
    found = record["origin"]
    assert found["campaign"]["seed"] == 5
    assert found["campaign"]["sps"] == [2, 1]
    assert found["campaign"]["shard"] == "2/3"
    assert (found["device"], found["transport"], found["ranks"]) == ("cpu", "gloo", 4)
    assert (found["test"], found["blob"][:18]) == ("test_it.py::test_it", "@reproduce_failure")
    assert found["versions"].keys() >= {
        *("harness", "python", "torch", "numpy", "hypothesis", "platform")
    }
    explanation = explain(changed(diverged, before=(CASE, CASE)))
    assert (place / "explanation.txt").read_text() == f"{explanation}\n"
    assert record["explanation"] == explanation
    assert "rank 3, log" in (place / "ranks.txt").read_text()
    assert f"{read_bundle(place).before}" == f"{(CASE, CASE)}"


def test_the_tensors_that_differ_are_kept_in_execution_order(
    diverged: Comparison, tmp_path: Path
) -> None:
    place = write_bundle(diverged, tmp_path)
    tensors = read_bundle(place).tensors
    assert [tensor.key for tensor in tensors] == [r.key for r in diverged.measured.keys if r.wrong]
    assert [tensor.key for tensor in tensors][:3] == ["labels", "nll", "loss"]
    first = diverged.measured.first
    assert first is not None
    labels = tensors[0]
    assert labels.tokens is not None
    (place_of_token,) = np.flatnonzero(labels.tokens == first.index[0])
    assert labels.expected[place_of_token] == first.expected
    assert labels.got[place_of_token] == first.got
    for tensor, result in zip(
        tensors, [r for r in diverged.measured.keys if r.wrong], strict=True
    ):
        # In fp64 a right element may differ by a bit as well, so these may be more.
        assert np.count_nonzero(tensor.expected != tensor.got) >= result.wrong
        assert tensor.expected.shape == tensor.shape
    # The file can also be read without the harness.
    assert set(load_file(place / TENSORS)) >= {"labels/expected", "labels/got", "labels/tokens"}


def test_writing_a_failure_twice_gives_the_same_bytes(
    diverged: Comparison, tmp_path: Path
) -> None:
    one, other = write_bundle(diverged, tmp_path / "1"), write_bundle(diverged, tmp_path / "2")
    for name in FILES:
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.slow
def test_the_bundle_of_a_fault_has_log_stack_and_collectives_of_every_rank(
    harness_pool: RankPool, tmp_path: Path
) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    fault = evaluate(CASE, f"{tmp_path}/loud.py:LOUD", harness_pool)
    assert fault.verdict is Verdict.FAULT
    place = write_bundle(fault, tmp_path)
    text = (place / "ranks.txt").read_text()
    for rank in (0, 1):
        # Earlier cases may have printed to the same log.
        log = text[text.index(f"rank {rank}, log\n") :].partition("\nrank ")[0]
        assert f"  here is rank {rank}" in log.splitlines()
        assert f"rank {rank}, stack\n" in text
    assert "ValueError: as planned" in text[text.index("rank 1, stack") :]
    waits = text[text.index("rank 0, collectives") : text.index("rank 1, log")]
    assert re.search(r"#\d+ on .*, not done", waits)
    assert read_bundle(place).mark == mark_of(fault)
    assert mark_of(fault).where == "raised"


def huge_failure() -> Comparison:
    """Return a failure with too much of everything."""
    kept = Kept()
    for key, shape in (("small", (3, 2)), ("large", (4000, 100)), ("last", (1 << 20,))):
        kept.add(*wrong(key, *shape, rows=shape[0] // 2))
    fault = Fault(
        kind=Kind.HUNG,
        summary="s" * 300_000,
        stacks=dict.fromkeys(range(64), "a line of a stack\n" * 500),
        collectives=dict.fromkeys(range(64), ("all_to_all",) * 500),
    )
    return changed(
        fault_comparison(CASE, "planted", fault),
        misfits=(Misfit(MisfitKind.LOST, "nll", tuple(range(50_000))),),
        keys=tuple(
            KeyResult(key, 9, 9, 9.0)
            for key in ("small", "large", "last", *(f"key.{n}" for n in range(5_000)))
        ),
        seen=(Look("crashed", "w" * 300_000),),
        logs=dict.fromkeys(range(64), "a line of a log\n" * 500),
        differing=tuple(kept.tensors),
    )


def test_a_bundle_is_small_and_lists_what_it_leaves_out(tmp_path: Path) -> None:
    place = write_bundle(huge_failure(), tmp_path)
    assert sum(file.stat().st_size for file in place.iterdir()) < MOST_BYTES
    bundle = read_bundle(place)
    left_out = "\n".join(bundle.left_out)
    for line in (
        "tensor large: all but ",
        "tensors key.0, key.1, key.2 and 4997 more",
        "findings.tokens: all but 1000 of 50000",
        "keys: too long",
        "explanation: all but the beginning",
        "fault.summary: all but the beginning",
        "log of rank 63: all but the end",
        "stack of rank 0: all but the end",
        "collectives of rank 7: all but the end",
    ):
        assert line in left_out
    assert len(bundle.left_out) < 1000
    small, large, _ = bundle.tensors
    assert small.rows is None
    # A large tensor keeps only wrong rows, as many as fit.
    assert large.rows is not None
    assert large.rows.tolist() == list(range(len(large.rows)))
    assert len(large.rows) < 2000
    assert large.expected.nbytes + large.got.nbytes > 0.9 * MOST_TENSORS
    assert (large.expected + 1 == large.got).all()


def test_a_bundle_from_before_columns_were_kept_is_read(tmp_path: Path) -> None:
    place = write_bundle(make_comparison("nll"), tmp_path)
    record = json.loads((place / RECORD).read_text())
    del record["columns"]
    (place / RECORD).write_text(json.dumps(record))
    assert read_bundle(place).case == CASE


def test_a_mark_has_the_name_that_this_very_case_suggests() -> None:
    looks = (
        Look("gradient-times-sp", "", larger=True),
        Look("stale-state", "it passes unless its ranks ran another case before it"),
        Look("kv-repeat", ""),
    )
    assert mark_of(make_comparison(seen=looks)).root == "kv-repeat"
    # A name of how the failure comes and goes counts only without another.
    assert mark_of(make_comparison(seen=looks[:2])).root == "stale-state"
    lost = Misfit(MisfitKind.LOST, "nll", (1,))
    assert mark_of(make_comparison(misfits=(lost,))).where == "nll, token lost"
    assert "gradient-times-sp (before shrinking)" in explain(make_comparison(seen=looks))
