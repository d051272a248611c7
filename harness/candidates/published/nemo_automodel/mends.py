"""The release without its listed bugs: keys of all ranks are gathered, and masked.

Legend: B rows, S tokens of all ranks, padded as by the library.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.library import Mend
from harness.candidates.published.wiring.decoder import seen_in_rows
from harness.candidates.published.wiring.mending import Call, wrapped
from harness.candidates.published.wiring.whole import attend_balanced

# Each of these attaches hooks that set a model's attention. Hooks of ours follow after either.
HOOKS = "attach_context_parallel_hooks", "attach_cp_sdpa_hooks"


@contextmanager
def masked() -> Iterator[None]:
    """While this lasts, attention has the window and the padding mask of a single rank."""
    from nemo_automodel.components.distributed.context_parallel import sharder, utils

    from harness.candidates.published.nemo_automodel.owned import attending

    current: dict[str, Any] = {}

    def keep_mask(released: Call) -> Call:
        @wraps(released)
        def shard(cp_mesh: Any, tp_mesh: Any, batch: Any, **options: Any) -> Any:
            attended_BS = batch["attention_mask"].long()
            behind = -attended_BS.shape[1] % (2 * cp_mesh.size())
            # Real tokens are in row 0; padding is in none.
            current.update(mesh=cp_mesh, row_BS=F.pad(attended_BS - 1, (0, behind), value=-1))
            return released(cp_mesh, tp_mesh, batch, **options)

        return shard

    def hook(released: Call) -> Call:
        @wraps(released)
        def attach(model: Any, *args: Any) -> Any:
            released(model, *args)
            window = getattr(model.config, "sliding_window", None)

            def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
                positions = torch.arange(current["row_BS"].shape[1])[None]
                seen_BSS = seen_in_rows(current["row_BS"], positions, window)
                return attend_balanced(q, k, v, seen_BSS, current["mesh"]).transpose(1, 2)

            attending(model, attend)

        return attach

    with ExitStack() as mends:
        mends.enter_context(wrapped(utils, "shard_batch_load_balanced", keep_mask))
        mends.enter_context(wrapped(sharder, "shard_batch_aux_only", keep_mask))
        for name in HOOKS:
            mends.enter_context(wrapped(utils, name, hook))
        yield


def labels_with_the_batch() -> AbstractContextManager[Any]:
    """While this lasts, labels of distillation are cut with the batch, and taken out after."""
    from harness.candidates.published.nemo_automodel import released

    def around(sharder: Call) -> Call:
        @wraps(sharder)
        def resolve(model: Any, mesh: Any, batch: Any, **options: Any) -> Any:
            labels = options.pop("loss_mask", None)
            resolved = sharder(model, mesh, batch, **options)
            return (
                resolved
                if labels is None
                else SimpleNamespace(shard=partial(shard, resolved, labels))
            )

        return resolve

    def shard(resolved: Any, labels: Tensor, batch: dict[str, Any]) -> Any:
        entered, batch = resolved.shard(batch | {"labels": labels})
        cut = batch.pop("labels")

        @contextmanager
        def context() -> Iterator[None]:
            with entered():
                # The step goes on with the tensor that it took out of the batch.
                labels.set_(cut)
                yield

        return context, batch

    return wrapped(released, "sharder", around)


def balanced_over_ranks() -> AbstractContextManager[Any]:
    """While this lasts, models of experts have the mesh over which to sum what they balance."""
    from nemo_automodel.components.moe.layers import MoE

    from harness.candidates.published.nemo_automodel import trained

    def around(attach: Call) -> Call:
        @wraps(attach)
        def with_mesh(model: Any, axes: Any, **options: Any) -> None:
            attach(model, axes, **options)
            for module in model.modules():
                if isinstance(module, MoE) and axes["cp"].size() > 1:
                    module.cp_mesh = axes["cp"]

        return with_mesh

    return wrapped(trained, "attach_ring", around)


MENDS: dict[str, Mend] = {
    "window-dropped": masked,
    "left-padding-attended": masked,
    "kd-takes-labels-out": labels_with_the_batch,
    "balance-of-each-shard": balanced_over_ranks,
}
