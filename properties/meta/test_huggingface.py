"""The step of the Hugging Face page passes as it is printed, and its bugs are found."""

import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import transformers

from harness import huggingface
from harness.case import Case, Model, parse
from harness.cli import main
from harness.compare import Comparison, Verdict
from harness.ranks.pool import RankPool
from harness.reference import seeded_weights
from harness.report import explain
from properties.helpers.judging import evaluate_all
from properties.helpers.places import ROOT
from properties.helpers.shown import shown

pytest_plugins = ["properties.helpers.own_pool"]

PAGE = "huggingface.md"
MAX_CODE_LINES = 60
LIMITS = ("dtype=fp32,bf16", "loss=token-mean", "steps=1")
CPU = torch.device("cpu")

# Two rows for each replica, with padding.
BATCH = "case/1 rows=5:11011,4:1111,3:011,7:1111111 layers=2 vocab=11 sp=2 dp=2 dtype=fp32"
CASES = [
    parse(f"{BATCH} model={model} {fields}")
    for model in get_args(Model)
    for fields in ("heads=4/2 tied=1", "heads=4/1 window=3 checkpoint=1")
]

# Real bugs by the names that they have to get, as changes of the page's code.
BUGS = {
    "label-rolled-locally": (
        ("labels, counts = ids.roll(-1)", "labels, counts = ids"),
        ("numbers = mine\n", "numbers = mine\n        labels = labels.roll(-1)\n"),
    ),
    "positions-restarted": (
        ("positions[None])", "torch.arange(len(ids), device=rank.device)[None])"),
    ),
    "segment-leak": (("(row[:, None] == row) & ", ""),),
    "window-ignored": (("sliding_window or len(row)", "len(row)"),),
    "replica-split": (("(gradient, group=rank.world)", "(gradient, group=rank.sp)"),),
    "kv-repeat": (
        (
            "x.repeat_interleave(layer.num_key_value_groups, 1)",
            "x.repeat(1, len(q[0]) // len(x[0]), 1, 1)",
        ),
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all tests, so that its ranks import transformers once."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def in_folder(own_pool: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del own_pool
    monkeypatch.chdir(folder)


def judged(
    pool: RankPool, cases: list[Case], *changes: tuple[str, str], name: str = "hf"
) -> list[Comparison]:
    """Write the page's code, with changes, into the current folder, and judge it on the cases."""
    Path(f"{name}.py").write_text(shown(PAGE, *changes))
    return list(evaluate_all(((case, f"{name}.py:HF") for case in cases), pool))


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder")
def test_the_step_is_short_and_passes_on_every_model_and_in_a_campaign(
    harness_pool: RankPool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sum(bool(line.strip()) for line in shown(PAGE).splitlines()) <= MAX_CODE_LINES
    for comparison in judged(harness_pool, CASES):
        assert comparison.verdict.passed, explain(comparison)
    page = (ROOT / "docs" / PAGE).read_text()
    (line,) = re.findall(r"^python -m harness (.*)", page, re.MULTILINE)
    assert main([*line.split(), "--sp=1,2", "--dp=1,2", "--cases=16", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["candidates"].values()
    assert "its limits are dtype=fp32,bf16" in record["refused"]
    assert set(record["refused"]) <= {f"its limits are {limit}" for limit in LIMITS}


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder")
def test_the_step_of_the_page_passes_when_it_is_compared_with_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("hf.py").write_text(shown(PAGE))
    command = ["check", "--candidate", "hf.py:HF", "--against", "self"]
    assert main([*command, "--sp=1,2", "--dp=1", "--cases=4", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["candidates"].values()
    assert record["judged"] == 4
    assert set(record["refused"]) <= {f"its limits are {limit}" for limit in LIMITS}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
@pytest.mark.usefixtures("in_folder")
def test_a_bug_in_the_step_is_found_and_named(name: str, harness_pool: RankPool) -> None:
    compared = judged(harness_pool, CASES[:2], *BUGS[name], name=name.replace("-", "_"))
    found = [comparison for comparison in compared if not comparison.verdict.passed]
    assert found
    for comparison in found:
        assert comparison.verdict is Verdict.DIVERGED, explain(comparison)
        assert comparison.inquiry.looks[0].name == name


@pytest.mark.slow
@pytest.mark.usefixtures("in_folder")
def test_without_the_refusal_fp64_is_unsupported_too(harness_pool: RankPool) -> None:
    case = replace(CASES[0], dtype="fp64")
    assert "--dtype fp32" in str(huggingface.refuses(case))
    none = (("dtype=fp32,bf16 ", ""), ("huggingface.refuses(case)", "None"))
    (comparison,) = judged(harness_pool, [case], *none, name="refuses_nothing")
    assert comparison.verdict is Verdict.UNSUPPORTED
    assert comparison.reason.endswith("as fp32 is: ask for --dtype fp32")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameters_that_backward_never_reached_have_gradients_of_zeros(case: Case) -> None:
    found = dict(huggingface.gradients(huggingface.build(case, CPU), case))
    weights = seeded_weights(case, torch.float32)
    assert set(found) == {f"grad.{name}" for name in weights}
    for name, weight in weights.items():
        assert torch.equal(found[f"grad.{name}"], torch.zeros_like(weight))


def test_a_model_in_half_precision_rotates_by_the_angles_of_one_in_fp32() -> None:
    whole = huggingface.build(CASES[0], CPU)
    half = huggingface.build(replace(CASES[0], dtype="bf16"), CPU)
    assert half.lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(half.model.rotary_emb.inv_freq, whole.model.rotary_emb.inv_freq)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_each_key_is_emitted_once_even_if_backward_and_another_forward_run(
    checkpoint: bool,
) -> None:
    case, ids = replace(CASES[0], layers=2, checkpoint=checkpoint), torch.arange(4)[None]
    model = huggingface.build(case, CPU)
    pairs: list[tuple[str, torch.Tensor]] = []
    with huggingface.watched(model, case, lambda key, x, _: pairs.append((key, x.detach())), ids):
        model(input_ids=ids).logits.sum().backward()
        model(input_ids=ids + 1)
    once: dict[str, torch.Tensor] = {}
    with huggingface.watched(model, case, lambda key, x, _: once.update({key: x.detach()}), ids):
        model(input_ids=ids)
    assert [key for key, _ in pairs] == list(once)
    assert {"layers.0.attn.q", "layers.1.attn.q"} <= set(once)
    assert not torch.equal(once["layers.0.attn.q"], once["layers.1.attn.q"])
    for key, tensor in pairs:
        assert torch.equal(tensor, once[key]), key


def test_a_derived_model_class_is_loaded_and_watched_like_its_base() -> None:
    class Own(transformers.LlamaForCausalLM):  # type: ignore[misc]
        """A model class that a user derives."""

    case, ids = CASES[0], torch.arange(4)[None]
    own = huggingface.load(Own(huggingface.config(case)), case, CPU)
    emitted: dict[str, list[torch.Tensor]] = defaultdict(list)
    for model in (huggingface.build(case, CPU), own):
        with huggingface.watched(model, case, lambda key, x, _: emitted[key].append(x), ids):
            model(input_ids=ids)
    assert len(emitted) == 2 + 5 * case.layers
    for of_base, of_own in emitted.values():
        assert torch.equal(of_base, of_own)


def test_a_model_with_other_parameters_is_refused_with_their_names() -> None:
    model = huggingface.build(replace(CASES[0], tied=False), CPU)
    with pytest.raises(RuntimeError, match=r"LlamaForCausalLM .*: \['lm_head.weight'\]"):
        huggingface.load(model, CASES[0], CPU)
