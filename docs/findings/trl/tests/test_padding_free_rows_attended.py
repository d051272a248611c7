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
from accelerate import Accelerator, ParallelismConfig
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trl import SFTConfig, SFTTrainer


VOCAB_SIZE = 16


class TestSFTTrainerContextParallelRefusals:
    """
    Context parallelism drops the mask that keeps rows apart, so whatever puts rows into one sequence must be refused.

    The accelerator gets its parallelism config after it is made, and so needs neither ranks nor a process group.
    """

    def get_trainer(self, tmp_path, monkeypatch, cp_size, **kwargs):
        parallelism_config = ParallelismConfig(cp_size=cp_size)
        create_accelerator = SFTTrainer.create_accelerator_and_postprocess

        def create_accelerator_without_ranks(trainer):
            create_accelerator(trainer)
            monkeypatch.setattr(Accelerator, "parallelism_config", property(lambda self: parallelism_config))

        monkeypatch.setattr(SFTTrainer, "create_accelerator_and_postprocess", create_accelerator_without_ranks)
        torch.manual_seed(42)
        config = LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
        tokenizer = Tokenizer(WordLevel({str(token_id): token_id for token_id in range(VOCAB_SIZE)}))
        input_ids = [[1, 2, 3, 4], [5, 6, 7, 8]]
        training_args = SFTConfig(
            output_dir=str(tmp_path),
            report_to="none",
            use_cpu=True,
            bf16=False,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            **kwargs,
        )
        return SFTTrainer(
            model=LlamaForCausalLM(config),
            args=training_args,
            train_dataset=Dataset.from_dict({"input_ids": input_ids, "labels": input_ids}),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="0"),
        )

    @pytest.mark.parametrize("padding_free, cp_size", [(False, 2), (True, 1)])
    def test_rows_apart_or_one_rank_are_accepted(self, tmp_path, monkeypatch, padding_free, cp_size):
        trainer = self.get_trainer(tmp_path, monkeypatch, cp_size=cp_size, padding_free=padding_free)
        assert trainer.args.padding_free is padding_free

    def test_padding_free_is_refused(self, tmp_path, monkeypatch):
        with pytest.raises(ValueError, match="not compatible with context parallelism.*padding_free"):
            self.get_trainer(tmp_path, monkeypatch, cp_size=2, padding_free=True)
