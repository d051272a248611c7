"""The stand-ins for private functions of flash-attn agree with those for its public functions."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.candidates.published.flash_stand_in import blocks, flash

SCALE = 0.3
EVERYTHING = (-1, -1)
# Whether attention is causal, and how far a query sees to the left and to the right.
MASKS = [
    (False, EVERYTHING),
    (True, EVERYTHING),
    (True, (1, 0)),
    (False, (1, 1)),
    (False, (0, -1)),
]
# Queries, keys, query heads, kv heads. With more queries than keys, some queries see none.
SHAPES = [(4, 4, 2, 2), (3, 5, 4, 2), (5, 3, 4, 1), (1, 4, 2, 1)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def drawn(shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Draw queries, keys and values of two rows, and a gradient of the output."""
    queries, keys, heads, kv_heads = shape
    return [
        torch.randn(2, length, count, 8, dtype=dtype)
        for length, count in (
            (queries, heads),
            (keys, kv_heads),
            (keys, kv_heads),
            (queries, heads),
        )
    ]


def forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    return blocks._flash_attn_forward(q, k, v, 0.0, SCALE, causal, *window, 0.0, None, False)[:2]


def backward(
    dout: Tensor, *saved: Tensor, causal: bool = False, window: tuple[int, int] = EVERYTHING
) -> list[Tensor]:
    """Compute the gradients of queries, keys and values, the first three of `saved`."""
    buffers = [torch.full_like(x, torch.nan) for x in saved[:3]]
    how: tuple[Any, ...] = (0.0, SCALE, causal, *window, 0.0, None, False)
    arguments: tuple[Any, ...] = (dout, *saved, *buffers, *how)
    blocks._flash_attn_backward(*arguments)
    return buffers


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("causal", "window"), MASKS)
def test_output_logarithms_and_gradients_match_the_public_function(
    shape: tuple[int, int, int, int], causal: bool, window: tuple[int, int]
) -> None:
    q, k, v, dout = drawn(shape)
    out, lse = forward(q, k, v, causal, window)
    own = backward(dout, q, k, v, out, lse, causal=causal, window=window)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    expected, expected_lse, _ = flash.flash_attn_func(
        q,
        k,
        v,
        softmax_scale=SCALE,
        causal=causal,
        window_size=window,
        return_attn_probs=True,
    )
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)
    # The logarithm is in fp32, so gradients are no more exact.
    gradients = torch.autograd.grad(expected, leaves, dout)
    torch.testing.assert_close(own, list(gradients), rtol=1e-5, atol=1e-6)


def test_blocks_merged_by_their_logarithms_equal_the_whole() -> None:
    q, k, v, dout = drawn((4, 6, 4, 2))
    halves = [slice(3), slice(3, None)]
    whole, lse = forward(q, k, v, False, EVERYTHING)
    parts = [forward(q, k[:, cut], v[:, cut], False, EVERYTHING) for cut in halves]
    weights = [(part_lse - lse).exp().transpose(1, 2)[..., None] for _, part_lse in parts]
    merged = sum(part * weight for (part, _), weight in zip(parts, weights, strict=True))
    torch.testing.assert_close(merged, whole, rtol=1e-6, atol=1e-6)

    # Each block gets the logarithm of the whole; with its own its gradients would differ.
    expected = backward(dout, q, k, v, whole, lse)
    of_parts = [backward(dout, q, k[:, cut], v[:, cut], whole, lse) for cut in halves]
    torch.testing.assert_close(of_parts[0][0] + of_parts[1][0], expected[0])
    for which in (1, 2):
        torch.testing.assert_close(torch.cat([p[which] for p in of_parts], 1), expected[which])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_logarithms_are_in_fp32_and_all_else_in_the_dtype_of_the_queries(
    dtype: torch.dtype,
) -> None:
    q, k, v, dout = drawn((4, 4, 2, 2), dtype)
    out, lse = forward(q, k, v, True, EVERYTHING)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    for gradient in backward(dout, q, k, v, out, lse, causal=True):
        assert gradient.dtype == dtype
        assert not gradient.isnan().any()


def test_packed_rows_equal_each_row_by_itself() -> None:
    ends_q, ends_k = (torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 4, 7]))
    lengths: tuple[Any, ...] = (ends_q, ends_k, 3, 4, 0.0, SCALE, True)
    q, k, v, dout = (x[0] for x in drawn((6, 8, 4, 2)))
    out, lse, *_ = blocks._flash_attn_varlen_forward(q, k, v, *lengths)
    buffers = [torch.full_like(x, 7.0) for x in (q, k, v)]
    arguments = (dout, q, k, v, out, lse, *buffers, *lengths, -1, -1, 0.0, None, False)
    blocks._flash_attn_varlen_backward(*arguments)
    for of_q, of_k in ((slice(0, 2), slice(0, 4)), (slice(2, 5), slice(4, 7))):
        alone = q[None, of_q], k[None, of_k], v[None, of_k]
        expected, expected_lse = forward(*alone, True, EVERYTHING)
        torch.testing.assert_close(out[of_q], expected[0])
        torch.testing.assert_close(lse[:, of_q], expected_lse[0])
        gradients = backward(dout[None, of_q], *alone, expected, expected_lse, causal=True)
        for buffer, place, gradient in zip(buffers, (of_q, of_k, of_k), gradients, strict=True):
            torch.testing.assert_close(buffer[place], gradient[0])
    # Tokens outside of all rows are not written.
    assert out[5:].isnan().all()
    assert lse[:, 5:].isnan().all()
    assert all((buffer[-1] == 7).all() for buffer in buffers)


def test_buffers_may_be_none() -> None:
    q, k, v, dout = drawn((4, 4, 2, 2))
    out, lse = forward(q, k, v, True, EVERYTHING)
    dk = torch.full_like(k, torch.nan)
    blocks._flash_attn_backward(
        dout, q, k, v, out, lse, None, dk, None, 0.0, SCALE, True, -1, -1, 0.0, None, False
    )
    assert not dk.isnan().any()


@pytest.mark.parametrize(("dropout", "softcap"), [(0.1, 0.0), (0.0, 1.0)])
def test_dropout_and_softcap_are_refused(dropout: float, softcap: float) -> None:
    q, k, v, _ = drawn((4, 4, 2, 2))
    with pytest.raises(NotImplementedError, match="dropout_p" if dropout else "softcap"):
        blocks._flash_attn_forward(q, k, v, dropout, SCALE, True, -1, -1, softcap, None, False)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in flash.MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in flash.MODULES:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("nothing_installed")
def test_install_puts_the_functions_where_rings_import_them_from() -> None:
    blocks.install()
    interface = sys.modules[blocks.INTERFACE]
    for name in ("_flash_attn_forward", "_flash_attn_varlen_backward"):
        assert getattr(interface, name) is getattr(blocks, name)
