"""The native step, and what is known of it, on a GPU that is not there."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.candidates import Rank, locate
from harness.candidates.bank import STAGES
from harness.candidates.own.benign import BANK as BENIGN
from harness.candidates.own.mutants import BANK
from harness.case import Case, Dtype, Wrapper, parse
from harness.cli import main
from harness.compare import Verdict
from harness.pretend import pretended
from harness.pretend.rules import NotOnTheDevice
from harness.ranks.device import choose
from harness.ranks.placement import UNSEEN
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.conftest import DIALECTS
from properties.helpers.groups import group_of_one
from properties.helpers.judging import evaluate, evaluate_all
from properties.helpers.shown import shown
from properties.planted.mistakes import MISTAKES, tutorial

Write = Callable[[str], str]

CASE = parse("case/1 rows=5:11011,4:1111,1:1 heads=4/2 vocab=11 sp=2")
# A stream of 7 tokens on two ranks, and so with padding.
PADDED = parse("case/1 rows=3:111,4:1011 heads=2 sp=2")
# Of the bank, what this one case shows and names.
KEYS = """
    B03b B06 B07 B11 B12 B15 B16 B17 B18 B19 B22 B23b B24 B26 B28 B35 B36 B37 B39 B40 B41 B42 B43
    B47 B51 B54 B55 B56 B71b B72 B82 B83 B84 B86b B88 B89 B90 B91 B92 B95 B96 B100 B101 B102 B103
    B105 B108 B109 B111 B114 B118 B119 B120 B121 B123 B125 B131 B132 B134 B137 B144 B145
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2, choose("pretend", "auto", 2)) as pool:
        pool.start()
        yield pool


def judged(case: Case, names: list[str], pool: RankPool) -> dict[str, str]:
    """What is wrong with each of these candidates, if anything is."""
    compared = evaluate_all(((case, name) for name in names), pool)
    return {c.candidate: explain(c) for c in compared if not c.verdict.passed}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("wrapper", ["none", "ddp"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_the_native_step_keeps_to_its_device(
    pool: RankPool, dtype: Dtype, wrapper: Wrapper
) -> None:
    case = replace(CASE, dtype=dtype, wrapper=wrapper, kernel="sdpa", micro_batches=2, steps=2)
    assert judged(case, list(DIALECTS), pool) == {}


@pytest.mark.slow
def test_what_is_benign_is_left_alone(pool: RankPool) -> None:
    assert len(BENIGN) >= 80
    assert judged(CASE, [f"benign.{key}" for key in BENIGN], pool) == {}


@pytest.mark.slow
def test_known_bugs_of_every_stage_are_named_as_on_a_cpu(pool: RankPool) -> None:
    keys = KEYS.split()
    assert len(keys) >= 60
    assert {BANK[key].stage for key in keys} == set(STAGES)
    compared = evaluate_all(((CASE, f"mutants.{key}") for key in keys), pool)
    found = {c.candidate.partition(".")[2]: [look.name for look in c.looks[:1]] for c in compared}
    named = {key: [BANK[key].anomaly] for key in keys}
    # One case in fp64 does not tell that a small error is rounding.
    assert found == named | {"B137": ["unclassified"]}


@pytest.fixture
def mine(tmp_path: Path) -> Write:
    """Writes a candidate into a file of its own, and names it."""

    def written(code: str) -> str:
        file = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.py"
        file.write_text(code)
        return f"{file}:MINE"

    return written


def test_the_tutorials_candidate_keeps_to_its_device_which_ranks_know_as_cuda(
    pool: RankPool, mine: Write
) -> None:
    knows = 'assert str(nll.device) == "cuda:0"; watch("nll"'
    name = mine(tutorial(('watch("nll"', knows)))
    for case in (PADDED, CASE, replace(CASE, dtype="fp32")):
        assert judged(case, [name], pool) == {}
    assert (pool.device, pool.transport) == ("pretend", "gloo")


@pytest.mark.slow
def test_so_does_a_transformers_model_put_together_as_the_page_shows(
    pool: RankPool, mine: Write
) -> None:
    name = mine(shown("huggingface.md", ("HF = HuggingFace", "MINE = HuggingFace")))
    for case in (PADDED, CASE):
        assert judged(replace(case, dtype="fp32"), [name], pool) == {}


@pytest.mark.slow
def test_a_tensor_on_the_wrong_device_passes_on_a_cpu(harness_pool: RankPool, mine: Write) -> None:
    if harness_pool.device != "cpu":
        pytest.skip("asked of a CPU")
    names = [mine(tutorial(mistake[:2])) for mistake in MISTAKES.values()]
    assert len(names) >= 10
    assert judged(PADDED, names, harness_pool) == {}


def test_what_needs_a_real_one_is_refused(pool: RankPool) -> None:
    sharded = replace(PADDED, wrapper="fsdp")
    assert evaluate(sharded, "native-local", pool).verdict is Verdict.UNSUPPORTED
    others = replace(PADDED, kernel="varlen", dtype="bf16"), replace(PADDED, compiled=True)
    for case in (sharded, *others):
        assert "needs a real GPU" in str(pool.placement.refuses(case))
    assert pool.placement.refuses(PADDED) is None


@pytest.mark.parametrize(("option", "word"), [("wrapper", "fsdp"), ("kernel", "flash")])
def test_the_command_line_refuses_it_in_one_sentence(
    option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--device", "pretend", f"--{option}", word]) == 2
    said = f"--{option}={word}: needs a real GPU; use --device cuda, or leave it out"
    assert capsys.readouterr().err == f"harness: {said}\n"


def test_a_check_says_what_it_has_not_seen(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "harness.commands.examiner.open_pool", lambda *_: contextlib.nullcontext(pool)
    )
    assert main(["check", "--cases", "2", "--ranks", "2", "--sp", "2", "--dp", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["unseen"] == UNSEEN
    assert UNSEEN in said.err.splitlines()


EXCHANGE = "        dist.all_to_all_single("
FAULTS = {
    "a step that computes elsewhere is vacuous": (
        ("rank.device", "torch.device('cpu')"),
        "no tensor was made on the device of rank 0, 1: the step computed elsewhere",
    ),
    "a message from the GPU": (
        (EXCHANGE, f"        dist.isend(x, 1 - dist.get_rank())\n{EXCHANGE}"),
        "NotOverGloo: send: gloo sends tensors of the host only, and this one is on cuda:0",
    ),
    "a tensor on the wrong device": (MISTAKES["exchange"][:2], MISTAKES["exchange"].said),
}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(("change", "said"), FAULTS.values(), ids=FAULTS)
def test_what_fails_on_a_gpu_only_is_a_fault_in_one_sentence(
    change: tuple[str, str], said: str, pool: RankPool, mine: Write
) -> None:
    comparison = evaluate(PADDED, mine(tutorial().replace(*change)), pool)
    assert comparison.verdict is Verdict.FAULT
    assert said in explain(comparison)


@pytest.fixture(scope="module")
def alone() -> Iterator[Rank]:
    """The only rank of a mesh, in this process: ranks that fail have to be started anew."""
    with group_of_one() as group, pretended() as device:
        yield Rank(0, 0, 0, device, group, group, group)


@pytest.mark.parametrize("part", MISTAKES)
def test_a_tensor_on_the_wrong_device_stops_the_step_with_the_operation_and_both_devices(
    alone: Rank, mine: Write, part: str
) -> None:
    step = locate(mine(tutorial(MISTAKES[part][:2]))).load()
    with pytest.raises(NotOnTheDevice, match=re.escape(MISTAKES[part].said)):
        step.run(replace(PADDED, sp=1), alone, lambda *_: None)
