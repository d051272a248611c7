# Copyright (c) ModelScope Contributors. All rights reserved.
"""The loss of a critic with ulysses_size 2 against the same loss on whole rows, on the CPU over gloo.

Modules are loaded by their paths: what the packages above them import is not needed.
"""
import importlib.util
import sys
import tempfile
import unittest
from datetime import timedelta
from functools import cache
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PACKAGES = ('', '.loss', '.utils', '.model', '.model.transformers', '.model.transformers.strategy')
# Each of two ranks has three of the six response tokens.
LABELS = torch.tensor([[-100, 3, 1, 2, 5, 1, 4, -100]])
VALUES = torch.arange(8.0)[None] / 10
PER_TOKEN = {
    'old_values': [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]],
    'returns': [[1.0, 0.0, 2.0, 0.0, 3.0, 0.0]],
}
# The same numbers, each in the column of its label.
FULL_ROWS = {
    name: torch.nn.functional.pad(torch.tensor(numbers), (1, 1))
    for name, numbers in PER_TOKEN.items()
}


@cache
def _load():
    root = importlib.util.find_spec('twinkle').submodule_search_locations[0]
    for below in PACKAGES:
        name = f'twinkle{below}'
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [root + below.replace('.', '/')]
    from twinkle.utils.device_mesh import DeviceMesh
    sys.modules['twinkle.utils'].DeviceMesh = DeviceMesh
    from twinkle.loss.value import PPOValueLoss
    from twinkle.model.transformers.strategy import sequence_parallel
    return sequence_parallel, PPOValueLoss()


def _run_worker(rank: int, world_size: int, store: str, given: dict, found):
    dist.init_process_group(
        backend='gloo',
        rank=rank,
        world_size=world_size,
        init_method=store,
        timeout=timedelta(minutes=5),
    )
    try:
        module, loss_fn = _load()
        # As prepare() leaves it for a model with two kv heads.
        shared = module.sequence_parallel
        shared.world_size = shared.seq_world_size = shared.sp_world_size = world_size
        shared.rp_world_size, shared._sp_rank, shared._sp_group = 1, rank, dist.group.WORLD
        strategy = module.SequenceParallelStrategy(sp_config={'ulysses_size': world_size})
        position_ids = torch.arange(LABELS.shape[1])[None]
        inputs = strategy.preprocess_inputs({'labels': LABELS, 'position_ids': position_ids})
        outputs = {'values': shared.split(VALUES, dim=1)}
        found.put(loss_fn(*strategy.gather_loss_tensors(inputs, outputs), **given)['loss'].item())
        dist.barrier()
    finally:
        dist.destroy_process_group()


class TestValueLossUnderSequenceParallel(unittest.TestCase):

    def _check(self, world_size: int, given: dict):
        expected = _load()[1]({'labels': LABELS}, {'values': VALUES}, **PER_TOKEN)['loss'].item()
        found = mp.get_context('spawn').SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            args = (world_size, f'file://{folder}/store', given, found)
            mp.spawn(_run_worker, args, nprocs=world_size)
        losses = torch.tensor([found.get() for _ in range(world_size)])
        # Gradients are averaged over ranks, and so is the loss that is logged.
        torch.testing.assert_close(losses.mean().item(), expected)

    def test_one_rank(self):
        self._check(1, PER_TOKEN)

    def test_numbers_per_response_token(self):
        self._check(2, PER_TOKEN)

    def test_full_rows(self):
        self._check(2, FULL_ROWS)


if __name__ == '__main__':
    unittest.main()
