"""The stand-in for what flash-attn keeps below its public functions, against eager attention."""

import math
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from harness.candidates.published.flash_stand_in import blocks

SCALE = 0.3
EVERYTHING = (-1, -1)
# Causal, and how far a query sees to the left and to the right.
MASKS = [
    (False, EVERYTHING),
    (True, EVERYTHING),
    (True, (1, 0)),
    (False, (1, 1)),
    (False, (0, -1)),
]
# Queries, keys, query heads, kv heads.
SHAPES = [(4, 4, 2, 2), (3, 5, 4, 2), (5, 3, 4, 1), (1, 4, 2, 1)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def drawn(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values of two rows, and a gradient of the output."""
    queries, keys, heads, kv_heads = shape
    return [
        torch.randn(2, length, of, 8, dtype=dtype)
        for length, of in ((queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads))
    ]


def seen(queries: int, keys: int, causal: bool, window: tuple[int, int]) -> Tensor:
    """One pair after another, by the documentation of flash-attn."""
    table = torch.zeros(queries, keys, dtype=torch.bool)
    for i in range(queries):
        for j in range(keys):
            place = i + keys - queries
            after_start = window[0] < 0 or j >= place - window[0]
            before_end = window[1] < 0 or j <= place + window[1]
            table[i, j] = after_start and before_end and (j <= place or not causal)
    return table


def eager(q: Tensor, k: Tensor, v: Tensor, seen_QK: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log of the sums, where every query sees something."""
    k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqmh,bkmh->bmqk", q, k) * SCALE
    scores = scores.masked_fill(~seen_QK, -math.inf)
    return torch.einsum("bmqk,bkmh->bqmh", scores.softmax(-1), v), scores.logsumexp(-1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    return blocks._flash_attn_forward(q, k, v, 0.0, SCALE, causal, *window, 0.0, None, False)[:2]


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    window: tuple[int, int],
) -> list[Tensor]:
    dq, dk, dv = (torch.full_like(x, torch.nan) for x in (q, k, v))
    blocks._flash_attn_backward(
        dout, q, k, v, out, lse, dq, dk, dv, 0.0, SCALE, causal, *window, 0.0, None, False
    )
    return [dq, dk, dv]


def cases() -> Iterator[tuple[tuple[int, int, int, int], bool, tuple[int, int]]]:
    """Those in which every query sees something; of the others eager attention makes NaN."""
    for shape in SHAPES:
        for causal, window in MASKS:
            if seen(*shape[:2], causal, window).any(1).all():
                yield shape, causal, window


@pytest.mark.parametrize(("shape", "causal", "window"), list(cases()))
def test_output_logs_and_gradients_are_those_of_eager_attention(
    shape: tuple[int, int, int, int], causal: bool, window: tuple[int, int]
) -> None:
    q, k, v, dout = drawn(shape)
    out, lse = forward(q, k, v, causal, window)
    mine = backward(
        dout, q, k, v, out, eager(q, k, v, seen(*shape[:2], causal, window))[1], causal, window
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected, expected_lse = eager(q, k, v, seen(*shape[:2], causal, window))
    expected.backward(dout)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse.float())
    for gradient, leaf in zip(mine, leaves, strict=True):
        torch.testing.assert_close(gradient, leaf.grad)


def test_the_comparison_tells_a_mask_aligned_at_the_first_key() -> None:
    q, k, v, _ = drawn((3, 5, 4, 2))
    out, _ = forward(q, k, v, True, EVERYTHING)
    elsewhere, _ = eager(q, k, v, torch.ones(3, 5, dtype=torch.bool).tril())
    assert not torch.allclose(out, elsewhere)


def test_blocks_merged_by_their_logs_are_the_whole() -> None:
    q, k, v, dout = drawn((4, 6, 4, 2))
    whole, lse = forward(q, k, v, False, EVERYTHING)
    parts = [forward(q, k[:, cut], v[:, cut], False, EVERYTHING) for cut in halves(6)]
    weights = [(part_lse - lse).exp().transpose(1, 2)[..., None] for _, part_lse in parts]
    merged = sum(part * weight for (part, _), weight in zip(parts, weights, strict=True))
    torch.testing.assert_close(merged, whole, rtol=1e-6, atol=1e-6)

    expected = backward(dout, q, k, v, whole, lse, False, EVERYTHING)
    of_parts = [
        backward(dout, q, k[:, cut], v[:, cut], whole, lse, False, EVERYTHING) for cut in halves(6)
    ]
    torch.testing.assert_close(of_parts[0][0] + of_parts[1][0], expected[0])
    for which in (1, 2):
        torch.testing.assert_close(torch.cat([p[which] for p in of_parts], 1), expected[which])


def test_a_backward_with_the_log_of_the_block_alone_is_another() -> None:
    q, k, v, dout = drawn((4, 6, 4, 2))
    whole, lse = forward(q, k, v, False, EVERYTHING)
    front = halves(6)[0]
    _, lse_of_front = forward(q, k[:, front], v[:, front], False, EVERYTHING)
    right, wrong = (
        backward(dout, q, k[:, front], v[:, front], whole, log, False, EVERYTHING)
        for log in (lse, lse_of_front)
    )
    assert not torch.allclose(right[1], wrong[1])


def halves(length: int) -> list[slice]:
    return [slice(length // 2), slice(length // 2, None)]


def test_a_query_that_sees_nothing_has_zeros_an_infinite_log_and_no_gradient() -> None:
    q, k, v, dout = drawn((5, 3, 4, 2))
    out, lse = forward(q, k, v, True, EVERYTHING)
    assert torch.equal(lse.isinf(), torch.arange(5).expand_as(lse) < 2)
    assert (lse[..., :2] > 0).all()
    assert not out[:, :2].any()
    assert out[:, 2:].all()
    dq, dk, _ = backward(dout, q, k, v, out, lse, True, EVERYTHING)
    assert not dq[:, :2].any()
    assert dq[:, 2:].any()
    assert not dk.isnan().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logs_are_in_fp32_and_everything_else_in_the_dtype_of_the_queries(
    dtype: torch.dtype,
) -> None:
    q, k, v, dout = drawn((4, 4, 2, 2), dtype)
    out, lse = forward(q, k, v, True, EVERYTHING)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    for gradient in backward(dout, q, k, v, out, lse, True, EVERYTHING):
        assert gradient.dtype == dtype
        assert not gradient.isnan().any()


def test_rows_end_to_end_are_the_same_as_each_alone() -> None:
    ends_q, ends_k = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 4, 7]))
    q, k, v, dout = (x[0] for x in drawn((6, 8, 4, 2)))
    out, lse, *_ = blocks._flash_attn_varlen_forward(
        q, k, v, ends_q, ends_k, 3, 4, 0.0, SCALE, True
    )
    dq, dk, dv = buffers = [torch.full_like(x, 7.0) for x in (q, k, v)]
    blocks._flash_attn_varlen_backward(
        dout,
        q,
        k,
        v,
        out,
        lse,
        dq,
        dk,
        dv,
        ends_q,
        ends_k,
        3,
        4,
        0.0,
        SCALE,
        True,
        -1,
        -1,
        0.0,
        None,
        False,
    )
    for of_q, of_k in ((slice(0, 2), slice(0, 4)), (slice(2, 5), slice(4, 7))):
        alone = q[None, of_q], k[None, of_k], v[None, of_k]
        expected, expected_lse = forward(*alone, True, EVERYTHING)
        torch.testing.assert_close(out[of_q], expected[0])
        torch.testing.assert_close(lse[:, of_q], expected_lse[0])
        gradients = backward(dout[None, of_q], *alone, expected, expected_lse, True, EVERYTHING)
        for buffer, place, gradient in zip(buffers, (of_q, of_k, of_k), gradients, strict=True):
            torch.testing.assert_close(buffer[place], gradient[0])
    # What no row has is not written.
    assert out[5:].isnan().all()
    assert lse[:, 5:].isnan().all()
    assert all((buffer[-1] == 7).all() for buffer in buffers)


def test_buffers_that_are_left_out_are_left_out() -> None:
    q, k, v, dout = drawn((4, 4, 2, 2))
    out, lse = forward(q, k, v, True, EVERYTHING)
    dk = torch.full_like(k, torch.nan)
    blocks._flash_attn_backward(
        dout, q, k, v, out, lse, None, dk, None, 0.0, SCALE, True, -1, -1, 0.0, None, False
    )
    assert not dk.isnan().any()


@pytest.mark.parametrize("asked", [{"dropout_p": 0.1}, {"softcap": 1.0}])
def test_what_is_not_stood_in_for_is_refused(asked: dict[str, float]) -> None:
    q, k, v, _ = drawn((4, 4, 2, 2))
    named = {"dropout_p": 0.0, "softcap": 0.0, **asked}
    with pytest.raises(NotImplementedError, match=next(iter(asked))):
        blocks._flash_attn_forward(
            q,
            k,
            v,
            softmax_scale=SCALE,
            causal=True,
            window_size_left=-1,
            window_size_right=-1,
            alibi_slopes=None,
            return_softmax=False,
            **named,
        )


def test_install_puts_them_where_rings_import_them_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, name)
    blocks.install()
    try:
        interface = sys.modules[blocks.INTERFACE]
        for name in ("_flash_attn_forward", "_flash_attn_varlen_backward"):
            assert getattr(interface, name) is getattr(blocks, name)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
            del sys.modules[name]
