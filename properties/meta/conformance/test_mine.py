"""A user's configuration is judged by the entries that are nearest to it, and all else is told."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.candidates.published.library import BadFolder, Library, libraries
from harness.candidates.published.options import Trainer, trainers
from harness.candidates.published.verl import limits as verl
from harness.case.settings import listed
from harness.cli import main
from harness.conformance.configuration import Configuration, as_text, read_configuration
from harness.conformance.mine import choose, choose_entries
from harness.untrusted import BadInput
from properties.helpers.places import ROOT

ALL = [
    pytest.param(trainer, entry, library.stated, id=f"{library.name}.{entry}")
    for library in libraries().values()
    for trainer in trainers(library)
    for entry in trainer.entries
]
# A text that each pattern in the folders stands for, beside those that stand for anything.
SAMPLES = {"[!d]*": "last_round", "[!-]*": "8", "[!1]*": "0.8", "[2-9]*": "2"}


def sample(pattern: object) -> str:
    text = as_text(pattern[0] if isinstance(pattern, tuple) else pattern)
    return SAMPLES.get(text, text.replace("*", "any"))


@pytest.mark.parametrize(("trainer", "entry", "limits"), ALL)
def test_an_entry_judges_the_configuration_that_it_stands_for(
    trainer: Trainer, entry: str, limits: Mapping[str, str]
) -> None:
    values = trainer.entries[entry]
    settings = {name.replace("*", "any_"): sample(value) for name, value in values.items()}
    choice = choose((trainer,), Configuration(settings), limits)
    assert entry in choice.entries
    assert choice.otherwise == []
    assert choice.unknown == []


VERL = """\
set -x
export WANDB_MODE=offline
sp_size=4
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo \\
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \\
    actor_rollout_ref.actor.clip_ratio_high=0.3 \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp_size} \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.actor.use_kl_loss=False \\
    ++trainer.logger='["console","wandb"]' $@  # and more
"""
TEXT = """\
train.sh, for verl 0.9.1
  judged     verl.actor: actor_rollout_ref.actor.policy_loss.loss_mode gspo,
             actor_rollout_ref.actor.loss_agg_mode seq-mean-token-mean,
             actor_rollout_ref.actor.use_kl_loss false
             verl.actor-on-policy:
             actor_rollout_ref.actor.policy_loss.loss_mode gspo,
             actor_rollout_ref.actor.loss_agg_mode seq-mean-token-mean,
             actor_rollout_ref.actor.use_kl_loss false
  otherwise  actor_rollout_ref.actor.clip_ratio_high 0.3; judged with 0.2
  drawn      actor_rollout_ref.actor.ulysses_sequence_parallel_size 4: cases
             have 1, 2 and 4
  left out   algorithm.adv_estimator grpo: numbers that are made or multiplied
             outside of ranks
  not known  trainer.logger
"""


def test_yaml_that_nothing_reads_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    with pytest.raises(BadInput, match=r"mine.yaml: cannot be read: PyYAML is not installed"):
        read_configuration(tmp_path / "mine.yaml")


def test_each_setting_of_a_script_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(VERL)
    choice, text = choose_entries(["verl"], file)
    assert text == TEXT
    assert list(choice.entries) == ["actor", "actor-on-policy"]
    # What the script does not say has the library's default; only models are drawn.
    for stated in choice.stated.values():
        assert stated.keys() == listed(verl.OF_ACTOR).keys() - {"family"}
        given = {"loss_mode": "gspo", "loss_agg_mode": "seq-mean-token-mean"}
        assert (
            stated.items()
            >= {**given, "entropy_coeff": "0.0", "kl_loss_type": "low_var_kl"}.items()
        )
    assert TEXT in (ROOT / "docs/published.md").read_text()


def test_a_part_of_a_configuration_asks_for_its_own_trainer(tmp_path: Path) -> None:
    file = tmp_path / "mine.sh"
    file.write_text("critic.use_dynamic_bsz=true critic.pad_to_length=true critic.strategy=fsdp")
    choice, text = choose_entries(["verl"], file)
    assert list(choice.entries) == ["critic", "critic-own-values"]
    assert choice.stated["critic"]["use_dynamic_bsz"] == "true"
    assert "critic.strategy fsdp; judged with fsdp2" in text


def test_entries_state_the_settings_that_their_cases_have(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(
        "trainer: {algorithm: {policy_loss_type: gspo, loss_reduction: sequence_mean, "
        "eps_clip_high: 0.3}, critic: {value_clip: 0.5}}\n"
    )
    choice, text = choose_entries(["skyrl"], file)
    assert set(choice.entries) == {"policy", "policy-own", "value", "value-own"}
    assert choice.stated["policy-own"] == {
        "clip_ratio_c": "3.0",
        "eps_clip_high": "0.2",
        "kl_estimator_type": "k3",
        "loss_reduction": "sequence_mean",
        "policy_loss_type": "gspo",
        "use_entropy_loss": "false",
        "use_kl_loss": "true",
    }
    assert choice.stated["policy"] == {**choice.stated["policy-own"], "temperature": "1.0"}
    assert choice.stated["value"] == choice.stated["value-own"] == {"value_clip": "0.5"}
    assert "trainer.algorithm.eps_clip_high 0.3; judged with 0.2\n" in text
    assert text.count("policy_loss_type gspo") == 2


def test_a_value_that_no_entry_has_is_told_of_once_for_each_that_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("trainer: {critic: {value_clip: 0.3}}\n")
    choice, _ = choose_entries(["skyrl"], file)
    assert choice.entries == {"critic": [], "value": [], "value-own": []}
    yours = "trainer.critic.value_clip 0.3; judged with"
    assert choice.otherwise == [f"{yours} inf", f"{yours} 0.2"]
    assert choice.stated == {key: {"value_clip": "0.2"} for key in ("value", "value-own")}


def test_a_command_asks_for_its_own_trainer(tmp_path: Path) -> None:
    file = tmp_path / "mine.sh"
    file.write_text("deepspeed --module openrlhf.cli.train_dpo --ds.ring_attn_size 2")
    assert list(choose_entries(["openrlhf"], file)[0].entries) == ["dpo"]
    file.write_text("--ds.ring-attn-size=2")
    assert len(choose_entries(["openrlhf"], file)[0].entries) > 2
    assert list(choose_entries(["openrlhf.reward"], file)[0].entries) == ["reward"]
    # One trainer may have several commands.
    file.write_text("swift rlhf --rlhf_type grpo --sequence_parallel_size 2")
    assert list(choose_entries(["ms_swift"], file)[0].entries) == ["grpo"]
    for command in ("sft", "pt"):
        file.write_text(f"swift {command} --sequence_parallel_size 2")
        assert list(choose_entries(["ms_swift"], file)[0].entries) == ["padded"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.yaml", "context_parallel:\n  backend: ring\nsample_packing: yes\n"),
        ("mine.json", '{"context_parallel": {"backend": "ring"}, "sample_packing": true}'),
        ("mine", "axolotl train --sample-packing --context_parallel.backend ring"),
    ],
)
def test_a_configuration_may_be_written_in_several_ways(
    name: str, text: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert list(choose_entries(["axolotl"], file)[0].entries) == ["packed-ring"]


def test_numbers_are_compared_as_numbers_and_lists_are_joined(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("a: 1.0\nb: {c: 1e-30, d: null}\nlisted: [x, 2]\nrows: [{name: n}]\n")
    settings = {"a": "1", "b.c": "1e-30", "listed": "x,2", "rows.name": "n"}
    assert read_configuration(file).settings == settings


def test_an_option_has_the_next_word_for_its_value_unless_that_is_an_option(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine"
    file.write_text("train --least -1 --rows 3 --packing -n 2 --on\n")
    settings = {"least": "-1", "rows": "3", "packing": "true", "on": "true"}
    assert read_configuration(file).settings == settings


@pytest.mark.parametrize(
    ("names", "file", "message"),
    [
        ("verl", "gone.yaml", "gone.yaml: No such file or directory"),
        ("verl", "empty.yaml", "empty.yaml: has no settings; use YAML, JSON, or a script"),
        ("verl", "bad.yaml", "bad.yaml: cannot be read: no YAML in line 2"),
        ("verl", "bad.sh", "bad.sh: cannot be read: No closing quotation"),
        ("verl", "deep.json", "deep.json: cannot be read: no YAML"),
        ("verl trl", "good.sh", "good.sh: name one package with it, of areal, axolotl, "),
        ("yunchang", "good.sh", "good.sh: name one package with it, of areal, axolotl, "),
        ("verl.attention", "good.sh", "good.sh: verl.attention is no entry that a conf"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(
    names: str,
    file: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.yaml").write_text("# nothing\n")
    Path("bad.yaml").write_text("a: 1\n- b\n")
    Path("bad.sh").write_text("a.b='c\n")
    Path("deep.json").write_text("[" * 10_000)
    Path("good.sh").write_text("a.b=c\n")
    assert main(["conformance", *names.split(), "--mine", file]) == 2
    assert capsys.readouterr().err.startswith(f"harness: --mine={message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("entries = { gone = {} }", "entries.gone: verl has no such entry"),
        ("entries = { actor = { x = 1 } }", "entries.actor.x: has no default"),
        (
            "entries = { actor = {} }\nsettings = { x = 'gone' }",
            "settings.x: no entry states a setting gone",
        ),
        ("entries = {}\ngone = 1", "trainer[0].gone: is not known"),
        ("entries = {}", "entries: is empty"),
    ],
)
def test_a_folder_with_wrong_options_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text(f"[[trainer]]\n{text}\n")
    library = Library("verl", "harness.candidates.published.verl", tmp_path)
    with pytest.raises(BadFolder, match=re.escape(f"options.toml: {message}")):
        trainers(library)


def test_settings_that_all_entries_share_are_judged_or_judged_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "dpo.yaml"
    file.write_text("beta: 0.1\nloss_type: sigmoid\nlabel_smoothing: 0.1\n")
    _, text = choose_entries(["trl.dpo"], file)
    assert "  judged     trl.dpo: beta 0.1, loss_type sigmoid\n" in text
    assert "  otherwise  label_smoothing 0.1; judged with 0\n" in text
