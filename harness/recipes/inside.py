"""Which tokens a rank holds, and the output of each module for them.

A step does not say which tokens a rank holds. A batch in which all ids differ shows it, whatever
the layout: the ids that reach the embedding are the tokens of the rank, in the rank's order.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from harness.case import Case

PADDING = -1
# emit(key, tensor, tokens).
EmitTokens = Callable[[str, Tensor, Tensor], None]


def with_distinct_ids(case: Case) -> Case:
    """Return the case with an id for each token that no other has: its number plus one.

    The padding id comes after them. Zero stays free for a step that pads with zeros itself.
    """
    ids = tuple(tuple(range(a + 1, b + 1)) for a, b in pairwise(case.offsets))
    return replace(case, ids=ids, vocab=max(case.vocab, case.tokens + 2), pad_id=case.tokens + 1)


@contextmanager
def embedded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the ids that each call of the embedding of tokens is given.

    Of the embeddings that `_embeddings` returns, it is the one which is called first.
    """
    calls: list[Tensor] = []
    first: list[nn.Module] = []

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if not first:
            first.append(module)
        if module is first[0]:
            calls.append(given[0].detach().clone())

    with ExitStack() as hooks:
        for module in _embeddings(model):
            hooks.callback(module.register_forward_pre_hook(before).remove)
        yield calls


def _embeddings(model: nn.Module) -> list[nn.Module]:
    """Return what may embed tokens: what a model of transformers names, or else all embeddings.

    Others may have positions or kinds of tokens, or the places of an image's patches.
    """
    # A model of several parts need not name one.
    with suppress(AttributeError, NotImplementedError):
        named: nn.Module | None = model.get_input_embeddings()  # type: ignore[operator]
        if named is not None:
            return [named]
    return [module for module in model.modules() if isinstance(module, nn.Embedding)]


def numbers(case: Case, calls: Sequence[Tensor]) -> list[Tensor]:
    """Return the token numbers of each call, given ids of a batch in which all differ."""
    return [torch.where(ids <= case.tokens, ids - 1, PADDING) for ids in calls]


@contextmanager
def emitted(model: nn.Module, layout: Sequence[Tensor], emit: EmitTokens) -> Iterator[None]:
    """Emit the output of each module for the tokens of each call, once.

    Outputs that backward computes again, or that do not have an entry for each id, are left out.
    The hooks of a compiled model are not compiled.
    """
    if not layout:
        yield
        return
    call, done = -1, set[tuple[str, int]]()
    first: nn.Module | None = None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(module: nn.Module, _: Any) -> None:
        nonlocal call, first
        first = first or module
        call += module is first

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(name: str, _module: nn.Module, given: Any, out: Any) -> None:
        tensor = _first_tensor(out)
        if tensor is None or not 0 <= call < len(layout) or (name, call) in done:
            return
        tokens = layout[call]
        if _is_by_token(tensor, given, tokens):
            done.add((name, call))
            emit(name, tensor.flatten(0, tokens.ndim - 1), tokens.flatten())

    with ExitStack() as hooks:
        for module in _embeddings(model):
            hooks.callback(module.register_forward_pre_hook(begin).remove)
        for name, module in model.named_modules():
            if name:
                hook = partial(after, name)
                hooks.callback(module.register_forward_hook(hook).remove)
        yield


def _is_by_token(out: Tensor, given: Any, tokens: Tensor) -> bool:
    """Whether an output's first dims are those of the ids.

    Heads may stand before tokens. With as many heads as columns the memory of what the module was
    given shows it: projections give a token all its heads side by side, and a transpose brings
    heads to the front.
    """
    dims = tokens.ndim
    if out.ndim <= dims or out.shape[:dims] != tokens.shape:
        return False
    may_be_heads = out.ndim > dims + 1 and out.shape[dims] == tokens.shape[-1]
    source = _first_tensor(given)
    laid = out if source is None or source.shape != out.shape else source
    return not (may_be_heads and laid.stride(dims - 1) <= laid.stride(dims))


def _first_tensor(out: Any) -> Tensor | None:
    if isinstance(out, torch.Tensor):
        return out if out.is_floating_point() else None
    if isinstance(out, tuple | list) and out:
        return _first_tensor(out[0])
    return None
