"""The release without its listed bugs: keys of all ranks are gathered, and masked.

Legend: B rows, S tokens of all ranks, padded as by the library.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
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


MENDS: dict[str, Mend] = {"window-dropped": masked, "left-padding-attended": masked}
