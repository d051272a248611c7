"""How much this rank sends to others, measured at no cost where it can be had at none."""

from collections import Counter
from functools import wraps
from typing import Any

import torch
from torch import distributed as dist

from harness.case import Case
from harness.ranks.collectives import sent_since

# All-to-alls by two names, what gloo's log has none of, and what torch does not carry.
NAMED, MESSAGES, UNKNOWN = "all-to-all", "messages", "unknown"


class Exchanges:
    """Adds up the bytes of what goes to other ranks, whoever starts it and however.

    All-to-alls are measured where they are called by name, and messages where all of them come
    through. Everything else is in torch's log, and reading that costs a millisecond: it is not
    read where more was sent by then than any attention needs.
    """

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._measure(dist, "all_to_all", NAMED)
        self._measure(dist, "all_to_all_single", NAMED)
        self._measure(dist.ProcessGroup, "send", MESSAGES)

    @property
    def sent(self) -> Counter[str]:
        """Bytes so far, of what can be had at no cost."""
        return self._sent.copy()

    def since(
        self, before: Counter[str], moment_ns: int, case: Case, replica: int, said: int
    ) -> dict[str, int | None]:
        """What was `sent` in bytes since it was `before`, and whether the log `forgot` some of it.

        With what the step `said` that it sent by means that torch does not know. Nothing where
        there is no log.
        """
        sent = self._sent - before
        sent[UNKNOWN] = said
        if case.sp == 1 or sent.total() * case.sp >= enough(case, replica):
            return {"sent": sent.total(), "forgot": False}
        # What is flat and smaller may be losses and labels.
        flat_from, wrapped = 2 * case.tokens + 1, case.wrapper != "none"
        logged, forgot = sent_since(moment_ns, flat_from, wrapped=wrapped)
        total = None if logged is None else logged + sent[MESSAGES] + said
        return {"sent": total, "forgot": forgot}

    def _measure(self, owner: Any, name: str, kind: str) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self._sent[kind] += size(given(*args, **kwargs))
            return function(*args, **kwargs)

        setattr(owner, name, measured)


def given(*args: Any, **kwargs: Any) -> Any:
    """What is sent: the second argument of all of them, under whatever name."""
    if len(args) > 1:
        return args[1]
    return next((kwargs[name] for name in ("input", "input_tensor_list") if name in kwargs), [])


def size(tensors: Any) -> int:
    pieces = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    return sum(piece.numel() * piece.element_size() for piece in pieces)


def enough(case: Case, replica: int) -> int:
    """More than attention over the rows of a replica needs to cross, whoever holds them."""
    of_a_token = 2 * case.heads * case.head_dim * (8 if case.dtype == "fp64" else 4)
    tokens = sum(len(row) for row in case.rows[replica :: case.dp])
    return case.layers * tokens * of_a_token
