"""SFTDataset marks the token that predicts, and FSDPSFTTrainer reads the mask as if the predicted
one were marked

verl 0.6.1. The data set clears the mask up to the token before the prompt's last, and on the
answer's last; the trainer reads loss_mask[:, 1:] with the labels input_ids[:, 1:]. So the last
token of the prompt is trained, and the last of the answer never is.

Run: python predicting-mask.py (one process, no GPU; sequence parallelism plays no part).
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
PROMPT, ANSWER = [11, 12, 13], [21, 22, 23]


def item_of_data_set():
    """`SFTDataset.__getitem__`, out of a module that imports pandas and a tokenizer."""
    tree = ast.parse((ROOT / "utils" / "dataset" / "sft_dataset.py").read_text())
    (data_set,) = (node for node in tree.body if getattr(node, "name", "") == "SFTDataset")
    (method,) = (node for node in data_set.body if getattr(node, "name", "") == "__getitem__")
    places = {"compute_position_id_with_mask": lambda mask: mask.cumsum(-1) - 1, "torch": torch}
    exec(compile(ast.Module([method], []), "sft_dataset.py", "exec"), places)
    return places["__getitem__"]


class Tokenizer:
    """Of two texts."""

    pad_token_id, eos_token = 0, ""

    def apply_chat_template(self, *_, **__) -> str:
        return "prompt"

    def __call__(self, text: str, **_):
        ids = torch.tensor([PROMPT if text == "prompt" else ANSWER])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def main() -> int:
    data_set = SimpleNamespace(
        tokenizer=Tokenizer(),
        prompts=["prompt"],
        responses=["answer"],
        apply_chat_template_kwargs={},
        max_length=8,
        truncation="error",
    )
    item = item_of_data_set()(data_set, 0)
    # fsdp_sft_trainer.py, _compute_loss_and_backward: these labels under this mask.
    trained = item["input_ids"][1:][item["loss_mask"][1:] == 1].tolist()
    print(f"expected trained tokens {ANSWER}")
    print(f"got      trained tokens {trained}")
    return int(trained != ANSWER)


if __name__ == "__main__":
    sys.exit(main())
