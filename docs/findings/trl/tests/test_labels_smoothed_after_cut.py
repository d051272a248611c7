# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trl import SFTConfig, SFTTrainer


VOCAB_SIZE = 16
INPUT_IDS = [[1, 2, 3, 4, 5, 6, 7, 8]]


class TestSFTTrainerContextParallelLabels:
    """
    Under context parallelism, `Trainer` shifts the labels first and then gives each rank its part of every tensor.
    The losses of the parts must add up to the loss of the whole row.

    No process group is needed: `compute_loss` gets the parts one after the other. The model has no layers, so no
    token attends to another one and a part has the same logits as in the whole row.
    """

    def get_trainer(self, tmp_path, label_smoothing_factor):
        torch.manual_seed(42)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=0,
            num_attention_heads=2,
            initializer_range=0.5,
        )
        tokenizer = Tokenizer(WordLevel({str(token_id): token_id for token_id in range(VOCAB_SIZE)}))
        training_args = SFTConfig(
            output_dir=str(tmp_path),
            report_to="none",
            use_cpu=True,
            bf16=False,
            label_smoothing_factor=label_smoothing_factor,
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        return SFTTrainer(
            model=LlamaForCausalLM(config),
            args=training_args,
            train_dataset=Dataset.from_dict({"input_ids": INPUT_IDS, "labels": INPUT_IDS}),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="0"),
        )

    @staticmethod
    def get_inputs():
        labels = torch.tensor(INPUT_IDS)
        return {
            "input_ids": labels.clone(),
            "attention_mask": torch.ones_like(labels),
            "position_ids": torch.arange(labels.size(1)).unsqueeze(0),
            "labels": labels,
            "shift_labels": torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100),
        }

    @pytest.mark.parametrize("label_smoothing_factor", [0.0, 0.1])
    @pytest.mark.parametrize("cp_size", [2, 4])
    def test_losses_of_parts_add_up_to_that_of_the_row(self, tmp_path, cp_size, label_smoothing_factor):
        trainer = self.get_trainer(tmp_path, label_smoothing_factor)
        inputs = self.get_inputs()
        num_items_in_batch = (inputs["shift_labels"] != -100).sum()

        # Without context parallelism, the inputs have no `shift_labels`
        row = {name: tensor for name, tensor in inputs.items() if name != "shift_labels"}
        expected = trainer.compute_loss(trainer.model, row, num_items_in_batch=num_items_in_batch)

        chunks = {name: tensor.chunk(cp_size, dim=1) for name, tensor in inputs.items()}
        losses = [
            trainer.compute_loss(
                trainer.model,
                {name: chunk[rank] for name, chunk in chunks.items()},
                num_items_in_batch=num_items_in_batch,
            )
            for rank in range(cp_size)
        ]
        torch.testing.assert_close(sum(losses), expected)
