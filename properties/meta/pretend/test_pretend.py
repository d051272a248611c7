"""The native step, its mutants and its benign variants on a pretended GPU."""

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
from harness.pretend import pretend_gpu
from harness.pretend.rules import NotOnTheDevice
from harness.rank_program.placement import UNSEEN
from harness.ranks.device import choose_placement
from harness.ranks.pool import RankPool
from harness.report import explain
from properties.conftest import DIALECTS
from properties.helpers.groups import group_of_one
from properties.helpers.judging import evaluate, evaluate_all
from properties.helpers.places import PLANTED
from properties.helpers.shown import shown
from properties.planted.mistakes import MISTAKES, tutorial

Write = Callable[[str], str]

CASE = parse("case/1 rows=5:11011,4:1111,1:1 heads=4/2 vocab=11 sp=2")
# Seven tokens on two ranks need padding.
PADDED = parse("case/1 rows=3:111,4:1011 heads=2 sp=2")
# The mutants that this one case finds and names.
KEYS = """
    B03b B06 B07 B11 B12 B15 B16 B17 B18 B19 B22 B23b B24 B26 B28 B35 B36 B37 B39 B40 B41 B42 B43
    B47 B51 B54 B55 B56 B71b B72 B82 B83 B84 B86b B88 B89 B90 B91 B92 B95 B96 B100 B101 B102 B103
    B105 B108 B109 B111 B114 B118 B119 B120 B121 B123 B125 B131 B132 B134 B137 B144 B145
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2, choose_placement("pretend", "auto", 2)) as pool:
        pool.start()
        yield pool


def explain_failures(case: Case, names: list[str], pool: RankPool) -> dict[str, str]:
    """Judge candidates on a case; return an explanation for each that does not pass."""
    compared = evaluate_all(((case, name) for name in names), pool)
    return {c.candidate: explain(c) for c in compared if not c.verdict.passed}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize("wrapper", ["none", "ddp"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
def test_the_native_step_uses_only_its_device(
    pool: RankPool, dtype: Dtype, wrapper: Wrapper
) -> None:
    case = replace(CASE, dtype=dtype, wrapper=wrapper, kernel="sdpa", micro_batches=2, steps=2)
    assert explain_failures(case, list(DIALECTS), pool) == {}


@pytest.mark.slow
def test_benign_variants_pass_on_a_pretended_gpu(pool: RankPool) -> None:
    native = [f"benign.{key}" for key, variant in BENIGN.items() if not variant.trains]
    assert len(native) >= 80
    assert explain_failures(CASE, native, pool) == {}


@pytest.mark.slow
def test_mutants_of_every_stage_are_found_and_named_as_on_a_cpu(pool: RankPool) -> None:
    keys = KEYS.split()
    assert len(keys) >= 60
    assert {BANK[key].stage for key in keys} == set(STAGES)
    compared = evaluate_all(((CASE, f"mutants.{key}") for key in keys), pool)
    found = {
        c.candidate.partition(".")[2]: [look.name for look in c.inquiry.looks[:1]]
        for c in compared
    }
    named = {key: [BANK[key].anomaly] for key in keys}
    # One case in fp64 does not show that its small error is rounding.
    assert found == named | {"B137": ["unclassified"]}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a candidate into a file of its own; return its name."""

    def write_file(code: str) -> str:
        file = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.py"
        file.write_text(code)
        return f"{file}:MINE"

    return write_file


def test_the_tutorials_candidate_uses_only_its_device_which_is_cuda_0(
    pool: RankPool, write: Write
) -> None:
    checked = 'assert str(nll.device) == "cuda:0"; watch("nll"'
    name = write(tutorial(('watch("nll"', checked)))
    for case in (PADDED, CASE, replace(CASE, dtype="fp32")):
        assert explain_failures(case, [name], pool) == {}
    assert (pool.device, pool.transport) == ("pretend", "gloo")


@pytest.mark.slow
def test_a_step_that_takes_the_device_with_the_number_local_rank_shares_it(
    pool: RankPool, write: Write
) -> None:
    checked = 'assert nll.get_device() == int(__import__("os").environ["LOCAL_RANK"]); watch("nll"'
    name = write(tutorial(('watch("nll"', checked)))
    assert explain_failures(CASE, [name], pool) == {}


@pytest.mark.slow
def test_accelerate_takes_the_device_that_ranks_share(pool: RankPool) -> None:
    pytest.importorskip("accelerate")
    case = parse("case/1 rows=5:11011,4:1111 heads=4/2 vocab=11 sp=2")
    assert explain_failures(case, [f"{PLANTED / 'styles.py'}:with_accelerate"], pool) == {}


@pytest.mark.slow
def test_a_transformers_model_built_as_the_page_shows_uses_only_its_device(
    pool: RankPool, write: Write
) -> None:
    name = write(shown("huggingface.md", ("HF = HuggingFace", "MINE = HuggingFace")))
    for case in (PADDED, CASE):
        assert explain_failures(replace(case, dtype="fp32"), [name], pool) == {}


# Seconds for a case: the first imports the code of its model, which takes long on a busy machine.
IMPORTING = 120.0


@pytest.mark.slow
def test_the_step_of_your_step_md_uses_only_its_device(
    pool: RankPool, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.deadlines, "case", IMPORTING)
    name = write(shown("your-step.md", ("def train_step", "def MINE")))
    assert explain_failures(CASE, [name], pool) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "gpt_oss__grpo",
        "qwen3_moe__gspo",
        "gemma_3__grpo_sequences",
        "qwen3__distilled",
        "llama__dpo",
    ],
)
def test_a_step_with_a_recipe_uses_only_its_device(
    pool: RankPool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.deadlines, "case", IMPORTING)
    case = parse("case/1 rows=5:11011,4:1111 heads=4/2 vocab=11 window=2 sp=2")
    failures = explain_failures(case, [f"{PLANTED / 'any_model.py'}:{name}"], pool)
    assert not failures, "\n".join(failures.values())


@pytest.mark.slow
def test_a_tensor_on_the_wrong_device_passes_on_a_cpu(
    harness_pool: RankPool, write: Write
) -> None:
    if harness_pool.device != "cpu":
        pytest.skip("needs ranks on a CPU")
    names = [write(tutorial(mistake[:2])) for mistake in MISTAKES.values()]
    assert len(names) >= 10
    assert explain_failures(PADDED, names, harness_pool) == {}


def test_a_case_that_needs_a_real_gpu_is_refused(pool: RankPool) -> None:
    sharded = replace(PADDED, wrapper="fsdp")
    assert evaluate(sharded, "native-local", pool).verdict is Verdict.UNSUPPORTED
    others = replace(PADDED, kernel="varlen", dtype="bf16"), replace(PADDED, compiled=True)
    for case in (sharded, *others):
        assert "needs a real GPU" in str(pool.placement.refuses(case))
    assert pool.placement.refuses(PADDED) is None


@pytest.mark.parametrize(("option", "word"), [("wrapper", "fsdp"), ("kernel", "flash")])
def test_the_command_line_refuses_what_needs_a_real_gpu_in_one_sentence(
    option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--device", "pretend", f"--{option}", word]) == 2
    message = f"--{option}={word}: needs a real GPU; use --device cuda, or leave it out"
    assert capsys.readouterr().err == f"harness: {message}\n"


def test_a_check_reports_what_a_pretended_gpu_cannot_show(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "harness.commands.examiner.open_pool", lambda *_: contextlib.nullcontext(pool)
    )
    assert main(["check", "--cases", "2", "--ranks", "2", "--sp", "2", "--dp", "1", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["unseen"] == UNSEEN
    assert UNSEEN in printed.err.splitlines()


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


@pytest.mark.slow
@pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)
def test_a_mistake_that_fails_on_a_gpu_only_is_a_fault_in_one_sentence(
    change: tuple[str, str], message: str, pool: RankPool, write: Write
) -> None:
    comparison = evaluate(PADDED, write(tutorial().replace(*change)), pool)
    assert comparison.verdict is Verdict.FAULT
    assert message in explain(comparison)


@pytest.fixture(scope="module")
def single_rank() -> Iterator[Rank]:
    """A mesh of one rank in this process, which can fail again and again without a new start."""
    with group_of_one() as group, pretend_gpu() as device:
        yield Rank(0, 0, 0, device, group, group, group)


@pytest.mark.parametrize("part", MISTAKES)
def test_the_error_of_a_wrong_device_names_the_operation_and_both_devices(
    single_rank: Rank, write: Write, part: str
) -> None:
    step = locate(write(tutorial(MISTAKES[part][:2]))).load()
    with pytest.raises(NotOnTheDevice, match=re.escape(MISTAKES[part].said)):
        step.run(replace(PADDED, sp=1), single_rank, lambda *_: None)
