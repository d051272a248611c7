"""A tensor that cannot be judged is refused when it is emitted, with the remedy."""

from pathlib import Path
from typing import Any

import pytest
import torch

from harness.candidates import locate
from harness.case import parse
from harness.ranks.pool import RankPool, TooFewRanks
from harness.watch.recorder import BadFragment, Recorder


@pytest.mark.parametrize(
    ("key", "tensor", "tokens"),
    [
        ("nll", torch.ones(2), None),
        ("nll", torch.ones(2, 3), torch.arange(2)),
        ("nll", torch.ones(2), torch.arange(3)),
        ("nll", torch.ones(2), torch.tensor([0, -2])),
        ("nll", torch.ones(2), torch.tensor([0, 7])),
        ("nll", torch.ones(2), torch.tensor([0.0, 1.0])),
        ("loss", torch.ones(1), None),
        ("loss", 1.0, None),
        (b"loss", torch.ones(()), None),
        # A key is sent and printed.
        ("loss\udcff", torch.ones(()), None),
        ("loss\x1b[2J", torch.ones(()), None),
        ("loss", torch.ones((), dtype=torch.complex64), None),
        ("nll", torch.ones(2).to_sparse(), torch.arange(2)),
        ("sent", torch.tensor(-1), None),
        ("sent", torch.tensor(1.5), None),
        ("sent", torch.tensor([1]), None),
    ],
)
def test_a_malformed_fragment_is_refused_and_not_kept(
    tmp_path: Path, key: Any, tensor: Any, tokens: Any
) -> None:
    with (tmp_path / "progress").open("wb") as progress:
        recorder = Recorder(1, 7, traced=False, progress=progress.fileno())
        with pytest.raises(BadFragment, match=r"loss|nll|sent"):
            recorder(key, tensor, tokens)
    assert recorder.fragments() == []


def test_later_changes_of_an_emitted_tensor_are_not_recorded(tmp_path: Path) -> None:
    nll, tokens = torch.ones(2), torch.arange(2)
    with (tmp_path / "progress").open("wb") as progress:
        recorder = Recorder(0, 2, traced=False, progress=progress.fileno())
        recorder("nll", nll, tokens)
        nll += 1
        tokens += 1
        (fragment,) = recorder.fragments()
    assert fragment.values is not None
    assert fragment.tokens is not None
    assert (fragment.values.tolist(), fragment.tokens.tolist()) == ([1, 1], [0, 1])


class OnDevice(torch.Tensor):
    """A tensor that reports a GPU as its device."""

    device = torch.device("cuda", 0)


@pytest.mark.parametrize(("kind", "waits"), [(torch.Tensor, 0), (OnDevice, 1)])
def test_the_recorder_waits_once_in_a_case_for_all_tensors_of_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[torch.Tensor], waits: int
) -> None:
    keys, waited = ["grad.a", "grad.b", "grad.c"], []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(1))
    with (tmp_path / "progress").open("wb") as progress:
        recorder = Recorder(0, 2, traced=False, progress=progress.fileno())
        for key in keys:
            recorder(key, torch.ones(2).as_subclass(kind))
        assert waited == []
        assert [fragment.key for fragment in recorder.fragments()] == keys
    assert len(waited) == waits


def test_a_case_that_needs_too_many_ranks_is_refused_before_any_rank_starts() -> None:
    with RankPool(1) as pool:
        with pytest.raises(TooFewRanks, match=r"sp\*dp=2\*1: needs 2 ranks and the pool has 1"):
            pool.run(parse("case/1 rows=3:111 sp=2"), locate("native-local"))
        assert pool.launches == 0
