"""process_reward_model with context_parallel_size > 1 passes the check for losses without
num_items_in_batch: each rank averages over the labels of its own shard

axolotl 0.21.0 with axolotl-ringmaster 0.2.7 and transformers 5.20.1: one row on two shards, which
follow each other in one process. Its model has no layers, so that a token sees no other; FSDP2's
average over ranks is taken here. With --control each shard has as many labels.

    python process-reward-mean-of-shards.py
"""

import sys
from types import MethodType, SimpleNamespace

import torch
from axolotl.integrations.context_parallel.trainer import configure_trainer
from ringmaster.shard import CP_SHARD_KEY, shard_collated_batch
from transformers import LlamaConfig, LlamaForTokenClassification, Trainer

SHARDS = 2
IGNORED = -100
# The ends of three steps, of which one is on the first shard.
LABELS = [IGNORED, 1, IGNORED, IGNORED, 0, IGNORED, 1, IGNORED]
if "--control" in sys.argv:
    LABELS[2] = 1


def batch():
    ids = torch.arange(len(LABELS))[None]
    return {"input_ids": ids, "labels": torch.tensor([LABELS])}


def gradient(model, inputs, **named):
    model.zero_grad()
    # As Trainer.compute_loss calls it.
    model(**inputs, **named).loss.backward()
    return model.score.weight.grad.clone()


def main():
    torch.manual_seed(0)
    sizes = {"vocab_size": 8, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4}
    config = LlamaConfig(**sizes, num_hidden_layers=0, num_labels=2, initializer_range=1.0)
    model = LlamaForTokenClassification(config).eval()
    # What axolotl's check asks of a trainer; the first is as transformers finds it.
    trainer = object.__new__(Trainer)
    trainer.model_accepts_loss_kwargs = (
        "kwargs" in LlamaForTokenClassification.forward.__code__.co_varnames
    )
    trainer.compute_loss_func = trainer.label_smoother = None
    trainer.accelerator = SimpleNamespace()
    configure_trainer(trainer)
    assert isinstance(trainer._get_num_items_in_batch, MethodType)
    print("configure_trainer refuses nothing")
    expected = gradient(model, batch())
    count = sum(label != IGNORED for label in LABELS) / SHARDS
    shards = []
    for rank in range(SHARDS):
        shard = shard_collated_batch(batch(), cp_rank=rank, cp_size=SHARDS)
        shard.pop(CP_SHARD_KEY)
        shards.append(gradient(model, shard, num_items_in_batch=torch.tensor(count)))
    got = torch.stack(shards).mean(0)
    print(f"expected gradient of a weight {expected[0, 0]:.4f}")
    print(f"got      gradient of a weight {got[0, 0]:.4f}")
    return int(not torch.allclose(expected, got, atol=1e-4))


if __name__ == "__main__":
    sys.exit(main())
