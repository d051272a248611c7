"""How much this rank sends to its peers, measured at no cost where it can be had at none."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import distributed as dist

from harness.candidates.protocol import Rank
from harness.case import Case
from harness.ranks.activations import sent_since
from harness.ranks.recorder import Recorder

# All-to-alls by two names, and what gloo's log has none of.
NAMED, MESSAGES = "all-to-all", "messages"
# Of what kind, and to which rank.
Sent = Counter[tuple[str, int]]
# To which rank, and how many bytes.
Given = Iterable[tuple[int, int]]


class Exchanges:
    """Adds up the bytes of what goes to each other rank, whoever starts it and however.

    All-to-alls are measured where they are called by name, and messages where all of them come
    through. Everything else is in torch's log, and reading that costs milliseconds: it is not
    read where more was sent by then than any attention needs.
    """

    def __init__(self) -> None:
        self._sent = Sent()
        self._measure(dist, "all_to_all", NAMED, of_pieces)
        self._measure(dist, "all_to_all_single", NAMED, of_one_tensor)
        self._measure(dist.ProcessGroup, "send", MESSAGES, of_a_message)

    @property
    def sent(self) -> Sent:
        """Bytes so far, of what can be had at no cost."""
        return self._sent.copy()

    def since(
        self, before: Sent, moment_ns: int, case: Case, rank: Rank, recorder: Recorder
    ) -> tuple[int | None, bool]:
        """What was sent to peers since it was `before`, and whether the log forgot some of it.

        With what the step said that it sent by means that torch does not know. Nothing where
        there is no log.
        """
        peers = set(dist.get_process_group_ranks(rank.sp))
        sent = Counter[str]()
        for (kind, to), size in (self._sent - before).items():
            if to in peers and to != rank.index:
                sent[kind] += size
        known = sent.total() + recorder.sent
        if case.sp == 1 or known * case.sp >= enough(case, rank.dp_index):
            return known, False
        ways = (case.dp, case.sp, case.ranks)
        logged, forgot = sent_since(moment_ns, peers, ways, recorder.parameters)
        # All-to-alls are in the log as well, by whatever name, and cut evenly for all it knows.
        total = None if logged is None else known + max(0, logged - sent[NAMED])
        return total, forgot

    def _measure(self, owner: Any, name: str, kind: str, given: Callable[..., Given]) -> None:
        function = getattr(owner, name)

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            for to, size in given(*args, **kwargs):
                self._sent[kind, to] += size
            return result

        setattr(owner, name, measured)


# Each of these is called as what it measures, and tells to whom how many bytes go.


def of_pieces(
    output_tensor_list: Any,  # noqa: ARG001 - its place
    input_tensor_list: list[torch.Tensor],
    group: Any = None,
    **_: Any,
) -> Given:
    return zip(ranks_of(group), [piece.nbytes for piece in input_tensor_list], strict=False)


def of_one_tensor(
    output: Any,  # noqa: ARG001 - its place
    input: torch.Tensor,  # noqa: A002 - torch's name
    output_split_sizes: Any = None,  # noqa: ARG001 - its place
    input_split_sizes: list[int] | None = None,
    group: Any = None,
    **_: Any,
) -> Given:
    ranks = ranks_of(group)
    rows = input_split_sizes or [1] * len(ranks)
    return zip(ranks, [input.nbytes * each // max(sum(rows), 1) for each in rows], strict=False)


def of_a_message(group: dist.ProcessGroup, tensors: list[torch.Tensor], to: int, *_: Any) -> Given:
    yield ranks_of(group)[to], sum(tensor.nbytes for tensor in tensors)


def ranks_of(group: Any) -> list[int]:
    """None of a group that this rank is not in: torch warns and sends nothing."""
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return []
    return dist.get_process_group_ranks(group)


def enough(case: Case, replica: int) -> int:
    """More than attention over the rows of a replica needs to cross, whoever holds them."""
    of_a_token = 2 * case.heads * case.head_dim * (8 if case.dtype == "fp64" else 4)
    tokens = sum(len(row) for row in case.rows[replica :: case.dp])
    return case.layers * tokens * of_a_token
