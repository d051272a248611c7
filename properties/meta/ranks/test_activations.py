"""What attention exchanged is told from everything else that is in the log of collectives."""

from collections import Counter
from typing import Any

import pytest

from harness.ranks import activations
from harness.ranks.activations import sent_since
from harness.ranks.collectives import BUFFER, GATE, group_name

PAIR = group_name("sp of 1x2", [0, 1])
WORLD = group_name("world of 2x2", [0, 1, 2, 3])
ACROSS = group_name("dp of 2x2", [0, 2])
ALONE = group_name("dp of 1x2", [0])
OWN = "undefined"
# Of one width those of two shapes, and one of another.
WEIGHTS: Counter[tuple[int, ...]] = Counter({(4, 4): 2, (8, 4): 1, (4, 8): 1})
WHOLE = [(4, 4), (4, 4), (8, 4), (4, 8)]


def raw(kind: str, shape: list[int], dtype: str = "Float", group: str = PAIR) -> dict[str, Any]:
    """An entry as torch writes it."""
    return {
        "profiling_name": f"gloo:{kind}",
        "process_group": ["1", group],
        "time_created_ns": 5,
        "input_sizes": [shape],
        "input_dtypes": [dtype],
    }


def sent(
    monkeypatch: pytest.MonkeyPatch, entries: list[dict[str, Any]], moment_ns: int = 5
) -> tuple[int | None, bool]:
    """By rank 0 to rank 1, of a model whose parameters may be cut in two."""
    monkeypatch.setattr(activations, "recorded", lambda: entries)
    return sent_since(moment_ns, {0, 1}, (1, 2), WEIGHTS)


@pytest.mark.parametrize(
    ("entry", "size"),
    [
        # One of two pieces stays at home, and three of four go elsewhere.
        (raw("all_to_all", [6]), 12),
        (raw("all_to_all", [8], group=WORLD), 8),
        (raw("all_gather", [3, 2, 4]), 96),
        (raw("all_gather", [3, 2, 4], "BFloat16"), 48),
        (raw("reduce_scatter", [3, 2, 4], group=WORLD), 96),
        (raw("all_gather", [3, 2]), 24),
        # One of them sends it, and both have an entry.
        (raw("broadcast", [3, 2]), 12),
        # Losses and labels of each token, or pieces of a model.
        (raw("all_gather", [1000]), 0),
        (raw("reduce_scatter", [1000]), 0),
        # Indices; gradients that all ranks sum up; keys that one has and others have zeros for.
        (raw("all_gather", [3, 2], "Long"), 0),
        (raw("all_reduce", [100]), 0),
        (raw("all_reduce", [10, 10]), 0),
        (raw("all_reduce", [3, 2, 4]), 96),
        # To other replicas, or to nobody; and a group of which nothing is known.
        (raw("all_gather", [3, 2, 4], group=ACROSS), 0),
        (raw("all_to_all", [6], group=ACROSS), 0),
        (raw("all_to_all", [6], group=ALONE), 0),
        (raw("all_gather", [3, 2, 4], group=ALONE), 0),
        (raw("all_gather", [3, 2, 4], group=OWN), 96),
        # Counted where they are sent; and what the harness enters itself.
        (raw("send", [3, 2, 4]), 0),
        (raw("all_gather", [3, 2, 4], group=GATE), 0),
    ],
)
def test_of_what_is_in_the_log_only_activations_to_peers_count_as_sent(
    entry: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent(monkeypatch, [entry]) == (size, False)
    assert sent(monkeypatch, [entry], moment_ns=6) == (0, False)


@pytest.mark.parametrize(
    ("shapes", "size"),
    [
        # All weights once, and twice, and in halves, and some of them.
        (WHOLE, 0),
        (2 * WHOLE, 0),
        ([(2, 4), (2, 4), (4, 4), (2, 8)], 0),
        (WHOLE[1:], 0),
        # Keys that look like a weight, alone and beside all weights.
        (4 * [(4, 4)], 4 * 64),
        ([*WHOLE, *(4 * [(4, 4)])], 4 * 64),
        ([*WHOLE, *(4 * [(3, 4)])], 4 * 48),
    ],
)
def test_parameters_do_not_count_and_keys_of_the_same_shape_do(
    shapes: list[tuple[int, int]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [raw("all_gather", list(shape)) for shape in shapes]
    assert sent(monkeypatch, entries) == (size, False)


def test_a_log_that_has_forgotten_or_keeps_nothing_cannot_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for entries, told_of in (
        ([], (None, False)),
        ([raw("all_to_all", [6])] * BUFFER, (12 * BUFFER, True)),
        ([raw("all_to_all", [6])] * (BUFFER - 1), (12 * (BUFFER - 1), False)),
    ):
        assert sent(monkeypatch, entries) == told_of
