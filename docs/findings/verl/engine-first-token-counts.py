"""sft_loss trains a row's last token to predict the next row's first where that has loss_mask 1

verl 0.9.1. The loss mask is rolled over the whole packed micro-batch, and its tokens are counted
before that. What is trained then depends on which rows share a micro-batch. The masks below have
loss_mask 1 for all tokens, as a data set of one's own (data.custom_cls) may have for plain text.
FSDPEngine.forward_backward_batch counts and calls sft_loss, as released: a mend in either is seen.

Run: python engine-first-token-counts.py (one process, no GPU; sequence parallelism plays no part).
"""

import ast
import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
TU = SimpleNamespace(
    get_non_tensor_data=lambda data, key, default: default,
    assign_non_tensor=lambda data, **named: data.update(named),
)


def released(path: str, name: str, **given):
    """A function or method as released, out of a module that imports much beside it."""
    tree = ast.parse((ROOT / path).read_text())
    function, *_ = (node for node in ast.walk(tree) if getattr(node, "name", "") == name)
    exec(compile(ast.Module([function], []), path, "exec"), given)
    return given[name]


def sft_loss():
    return released(
        "workers/utils/losses.py",
        "sft_loss",
        torch=torch,
        ActorConfig=object,
        TensorDict=object,
        DatasetPadMode=SimpleNamespace(NO_PADDING="no_padding"),
        tu=TU,
        masked_sum=released("utils/torch_functional.py", "masked_sum", torch=torch),
    )


def engine(log_probs):
    """On one replica, with one micro-batch; the model's part is done."""

    def forward_step(micro_batch, loss_function, forward_only):
        loss, _ = loss_function(None, {"log_probs": log_probs}, micro_batch)
        return loss, {"loss": loss.item(), "count": micro_batch["batch_num_tokens"]}

    return SimpleNamespace(
        ulysses_sequence_parallel_size=1,
        get_data_parallel_group=lambda: None,
        get_data_parallel_size=lambda: 1,
        forward_step=forward_step,
        _gradient_sync_context=lambda **_: nullcontext(),
    )


def train(log_probs, masks):
    """The loss, and how many tokens it is divided by."""
    rows = torch.nested.nested_tensor(log_probs, layout=torch.jagged, requires_grad=True)
    data = {"loss_mask": torch.nested.nested_tensor(masks, layout=torch.jagged)}
    forward_backward_batch = released(
        "workers/engine/fsdp/transformer_impl.py",
        "forward_backward_batch",
        torch=torch,
        TensorDict=object,
        Callable=object,
        tu=TU,
        nullcontext=nullcontext,
        get_device_id=lambda: "cpu",
        prepare_micro_batches=lambda data, **_: ([data], None),
        postprocess_batch_func=lambda output_lst, **_: output_lst,
    )
    torch.distributed.all_reduce = lambda *_, **__: None  # Of one replica.
    (told,) = forward_backward_batch(engine(rows), data, sft_loss())
    return told["loss"], told["count"]


def main() -> int:
    # Of each token's prediction of the next one; the last of a row predicts another row's first.
    log_probs = [torch.tensor([-1.0, -10.0]), torch.tensor([-2.0, -20.0])]
    got, count = train(log_probs, [torch.tensor([1, 1]), torch.tensor([1, 1])])
    expected = (1.0 + 2.0) / 2
    print(f"expected loss {expected}, over 2 tokens (what each row predicts of itself)")
    print(f"got      loss {got}, over {count} tokens")
    return int(abs(got - expected) > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
