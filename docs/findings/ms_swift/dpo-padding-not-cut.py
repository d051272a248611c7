"""DPO with padding_free and sequence_parallel_size > 1 fails where the packed length is no
multiple of it: get_per_token_logps does not pad position_ids before it cuts the padding off

ms-swift 4.6.0. The released DPOTrainer.concatenated_forward and SequenceParallel on two ranks,
beside the same on one: a chosen and a rejected row, packed. The model is an embedding, which needs
no flash-attn for packed rows. Run: python dpo-padding-not-cut.py (two processes on the CPU).
With --control the packed rows have eight tokens, not seven, so that nothing is padded.
"""

import ast
import sys
import tempfile
import typing
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LENGTHS = (4, 4) if "--control" in sys.argv else (4, 3)
SWIFT, TRL = (Path(find_spec(name).submodule_search_locations[0]) for name in ("swift", "trl"))
FUNCTIONS = {
    "selective_log_softmax": TRL / "trainer/utils.py",
    "get_packed_seq_params": SWIFT / "utils/transformers_utils.py",
    "get_cu_seqlens": SWIFT / "trainers/mixin.py",
    "_packed_sequence_sum": SWIFT / "rlhf_trainers/rlhf_mixin.py",
    "get_per_token_logps": SWIFT / "rlhf_trainers/rlhf_mixin.py",
    "concatenated_forward": SWIFT / "rlhf_trainers/dpo_trainer.py",
}


def released(size: int):
    """A trainer of the released methods, and their sequence_parallel, for so many ranks."""
    utils = {"HfConfigFactory": SimpleNamespace(get_config_attr=getattr)}
    utils |= {"get_device": lambda: "cpu", "get_dist_setting": lambda: (-1, -1, size, size)}
    utils["get_cu_seqlens_from_position_ids"] = None  # Only a ring asks for it.
    packages = {"swift": {}, "swift.utils": utils}
    packages["swift.dataloader"] = {"DataLoaderDispatcher": object}
    packages["swift.model"] = {"get_llm_model": lambda model: model}
    for name, given in packages.items():
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(given, __path__=[str(SWIFT.joinpath(*name.split(".")[1:]))])
    from swift.sequence_parallel import GatherLoss, sequence_parallel

    names = {**vars(typing), "F": torch.nn.functional, "nn": torch.nn, "torch": torch}
    names |= {"GatherLoss": GatherLoss, "sequence_parallel": sequence_parallel}
    # The released functions alone, out of modules that import much beside them.
    for name, path in FUNCTIONS.items():
        nodes = ast.walk(ast.parse(path.read_text()))
        node = next(node for node in nodes if getattr(node, "name", "") == name)
        exec(compile(ast.Module([node], []), str(path), "exec"), names)
    names["get_use_logits_to_keep"] = lambda *_: False
    return type("Trainer", (), names)(), sequence_parallel


class Model(torch.nn.Embedding):
    config = SimpleNamespace(num_key_value_heads=2)
    model_info = SimpleNamespace(is_moe_model=False)

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=super().forward(input_ids))


@torch.no_grad()
def rank(index: int, size: int, store: str, found) -> None:
    dist.init_process_group("gloo", init_method=store, rank=index, world_size=size)
    trainer, sequence_parallel = released(size)
    trainer.is_encoder_decoder = trainer.aux_loss_enabled = False
    trainer.label_pad_token_id, trainer.args = -100, SimpleNamespace(ld_alpha=None)
    torch.manual_seed(0)
    model, ids = Model(32, 32), torch.randint(1, 32, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    batch = {"input_ids": ids, "position_ids": positions}
    batch["labels"] = torch.where(positions == 0, -100, ids)  # One token is the prompt.

    def step(ranks: int) -> str:
        trainer.template = SimpleNamespace(padding_free=True, sequence_parallel_size=ranks)
        try:
            output = trainer.concatenated_forward(model, batch)
        except RuntimeError as error:
            return f"RuntimeError: {error}"
        sides = (f"{side} {output[f'{side}_logps'].item():.2f}" for side in ("chosen", "rejected"))
        return "log-probabilities: " + ", ".join(sides)

    expected = step(1)
    sequence_parallel.prepare(size, model, SimpleNamespace(pad_token_id=0), padding_free=True)
    sequence_parallel.prepare_inputs(batch)
    found.put((expected, step(size)))
    dist.destroy_process_group()


if __name__ == "__main__":
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, (2, f"file://{folder}/store", found), nprocs=2)
    expected, got = found.get()
    print(f"{sum(LENGTHS)} packed tokens\nexpected {expected}\ngot      {got}")
    sys.exit(int(got != expected))
