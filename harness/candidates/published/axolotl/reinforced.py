"""The step of axolotl's trainer of EBFT, which a recipe judges; what is sampled is given.

Legend: B rows, A columns of answers.
"""

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from datasets import Dataset
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.utils.rnn import pad_sequence

from harness.candidates.published.axolotl import library
from harness.candidates.published.axolotl.formulas import ANSWERS, EPSILON, LENGTH, REFERENCE
from harness.candidates.published.axolotl.prepared import (
    arguments,
    made_for,
    rows_of,
    step,
    tokenizer,
)
from harness.candidates.published.wiring.rows import IGNORED
from harness.candidates.published.wiring.scaled import scaled
from harness.recipes.batch import Batch

# By column, what each row has.
Given = dict[str, list[Tensor]]
LOGGED = "entropy", "kl"


class Sampled:
    """A mixin before the released trainer: answers, rewards and an old policy's view are given.

    A prompt is the number of a pair of rows, whose first tokens stand for it.
    """

    given: Given

    def _generate(self, prompts: Sequence[str]) -> Any:
        """Return what a sampler and an environment would: ids, and which of them are targets."""
        rows = places_of(prompts)
        ids = [self.given["input_ids"][row].tolist() for row in rows]
        labels = [self.given["labels"][row][1:] for row in rows]
        masks = [(x != IGNORED).long().tolist() for x in labels]
        prompt_ids, answers = [x[:1] for x in ids], [x[1:] for x in ids]
        return prompt_ids, answers, masks, [""] * len(rows), None, {}, None, []

    def _feature_matching_reward(
        self, prompts: Sequence[str], completions: Any, **_: Any
    ) -> list[float]:
        del completions
        return [self.given["rewards"][row].item() for row in places_of(prompts)]

    def _generate_and_score_completions(self: Any, inputs: Sequence[dict[str, Any]]) -> Any:
        """Add what an old policy says, as from the second iteration over the same answers."""
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        rows = places_of([example["prompt"] for example in inputs])
        old = [self.given["old_logps"][row][1:] for row in rows]
        return {**output, "old_per_token_logps": pad_sequence(old, batch_first=True)}


def places_of(prompts: Sequence[str]) -> list[int]:
    """Return the row of each answer; those to one prompt follow each other."""
    return [ANSWERS * int(prompt) + place % ANSWERS for place, prompt in enumerate(prompts)]


def ebft(model: Any, batch: Batch, mesh: DeviceMesh, **settings: Any) -> Any:
    """Take the step of `AxolotlEBFTTrainer` in its structured mode."""
    names = ("input_ids", "labels", "rewards", "old_logps")
    given = {name: rows_of(batch, name) for name in names}
    rows = len(given["rewards"])
    prompts = [str(number) for number in range(rows // ANSWERS)]
    options = arguments(mesh, rows)
    # axolotl has accelerate read these from the environment, where TRL does not see them.
    shared = options.pop("parallelism_config", None)

    def reference(*_: Any, **__: Any) -> Any:
        return scaled(model, REFERENCE)

    with made_for(model, mesh), patch.object(library.grpo, "create_model_from_path", reference):
        config = library.ebft_arguments.AxolotlEBFTConfig(
            **options,
            num_generations=ANSWERS,
            max_completion_length=LENGTH,
            shuffle_dataset=False,
            epsilon=EPSILON,
            # CISPO reads it as the bound itself.
            epsilon_high=1 + EPSILON if settings["loss_type"] == "cispo" else None,
            **settings,
        )
        config.parallelism_config = shared
        made = type("Trainer", (Sampled, library.ebft.AxolotlEBFTTrainer), {})(
            model=model,
            args=config,
            # Each replica takes its prompts out of the set; a round of it has as many as ranks.
            train_dataset=Dataset.from_dict({"prompt": prompts * mesh.size()}),
            processing_class=tokenizer(model.config.vocab_size, model.config.pad_token_id or 0),
        )
    made.given = given
    logged = step(made, model, mesh, {}, rl=library.enums.RLType.EBFT)
    return logged["loss"], {name: logged[name] for name in LOGGED if name in logged}
