"""The stand-in for flash-attn 2 computes and refuses the same as the real package.

Legend: T tokens of a stream, M query heads, C kv heads, H head dim.
"""

import subprocess
import sys
from collections.abc import Iterator
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.candidates.published.flash_stand_in import flash
from harness.candidates.published.flash_stand_in.padding import pad_input, unpad_input

HEAD_DIM = 8


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in flash.MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    flash.calls.clear()
    yield
    for name in flash.MODULES:
        sys.modules.pop(name, None)


def stream(
    *lengths: int, heads: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Draw tokens of rows end to end; return them with the cumulative lengths of rows."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(lengths), heads, HEAD_DIM, generator=random, dtype=torch.float64)
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    return x.to(dtype).requires_grad_(), ends


def query_by_query(
    q_TMH: Tensor, k_TCH: Tensor, v_TCH: Tensor, ends_q: Tensor, ends_k: Tensor, **how: Any
) -> Tensor:
    """Attend with one query of one head at a time, to the keys that a list contains."""
    scale, causal, (left, right) = how["scale"], how["causal"], how["window"]
    out = []
    for (q0, q1), (k0, k1) in zip(
        pairwise(ends_q.tolist()), pairwise(ends_k.tolist()), strict=True
    ):
        for i in range(q1 - q0):
            at = i + (k1 - k0) - (q1 - q0)
            seen = [
                j
                for j in range(k1 - k0)
                if not (causal and j > at)
                and not (left >= 0 and j < at - left)
                and not (right >= 0 and j > at + right)
            ]
            for m in range(q_TMH.shape[1]):
                c = m // (q_TMH.shape[1] // k_TCH.shape[1])
                if not seen:
                    out.append(torch.zeros(HEAD_DIM, dtype=q_TMH.dtype))
                    continue
                keys = torch.stack([k_TCH[k0 + j, c] for j in seen])
                values = torch.stack([v_TCH[k0 + j, c] for j in seen])
                weights = ((keys * q_TMH[q0 + i, m]).sum(-1) * scale).exp()
                out.append((weights[:, None] * values).sum(0) / weights.sum())
    return torch.stack(out).view_as(q_TMH)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2)])
@pytest.mark.parametrize(
    ("causal", "window"),
    [(True, (-1, -1)), (False, (-1, -1)), (True, (2, 2)), (True, (0, 0)), (False, (2, 1))],
)
@pytest.mark.parametrize(
    ("lengths_q", "lengths_k"),
    [
        ((5, 1, 3), (5, 1, 3)),
        ((4,), (4,)),
        ((2, 0, 6, 1), (2, 0, 6, 1)),
        # The last query is aligned with the last key; with more queries than keys, some see none.
        ((2, 4, 1, 3), (5, 2, 4, 0)),
    ],
)
def test_each_query_sees_its_own_row_up_to_its_own_place(
    heads: int,
    kv_heads: int,
    causal: bool,
    window: tuple[int, int],
    lengths_q: tuple[int, ...],
    lengths_k: tuple[int, ...],
) -> None:
    q, ends_q = stream(*lengths_q, heads=heads)
    k, ends_k = stream(*lengths_k, heads=kv_heads, seed=1)
    v, _ = stream(*lengths_k, heads=kv_heads, seed=2)
    expected = query_by_query(
        q, k, v, ends_q, ends_k, scale=HEAD_DIM**-0.5, causal=causal, window=window
    )
    out = flash.flash_attn_varlen_func(
        *(q, k, v, ends_q, ends_k, max(lengths_q), max(lengths_k)),
        causal=causal,
        window_size=window,
    )
    assert_close(out, expected, q, k, v)
    if len(lengths_q) == 1:
        table = flash.flash_attn_func(q[None], k[None], v[None], causal=causal, window_size=window)
        assert_close(table[0], expected, q, k, v)


def assert_close(out: Tensor, expected: Tensor, *arguments: Tensor) -> None:
    """Compare outputs, and the gradients of the inputs."""
    weights = torch.arange(out.numel(), dtype=out.dtype).view_as(out).cos()
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad((out * weights).sum(), arguments)
    wanted = torch.autograd.grad((expected * weights).sum(), arguments, retain_graph=True)
    torch.testing.assert_close(gradients, wanted, rtol=1e-12, atol=1e-12)


def test_padded_rows_do_not_see_each_other_and_the_caller_sets_the_scale() -> None:
    q, ends = stream(3, 3, heads=2)
    k, v = (stream(3, 3, heads=2, seed=seed)[0] for seed in (1, 2))
    expected = query_by_query(q, k, v, ends, ends, scale=0.7, causal=True, window=(-1, -1))
    rows = (2, 3)
    out = flash.flash_attn_func(
        q.unflatten(0, rows),
        k.unflatten(0, rows),
        v.unflatten(0, rows),
        softmax_scale=0.7,
        causal=True,
    )
    assert_close(out.flatten(0, 1), expected, q, k, v)


def test_the_returned_logarithm_is_that_of_the_sum_of_exponentials() -> None:
    q, ends_q = stream(3, 2, heads=2)
    k, ends_k = stream(3, 1, heads=2, seed=1)
    out, lse_MT, nothing = flash.flash_attn_varlen_func(
        *(q, k, k, ends_q, ends_k, 3, 3), causal=True, return_attn_probs=True
    )
    assert nothing.numel() == 0
    assert (lse_MT.dtype, lse_MT.shape) == (torch.float32, (2, 5))
    for m in range(2):
        scores = [
            float((q[t, m] @ k[j, m]).detach()) * HEAD_DIM**-0.5
            for t, j in ((1, 0), (1, 1), (4, 3))
        ]
        both = torch.tensor(scores[:2]).logsumexp(0)
        torch.testing.assert_close(lse_MT[m, 1], both)
        torch.testing.assert_close(lse_MT[m, 4], torch.tensor(scores[2]))
    # With two queries and one key, the first query sees nothing.
    assert lse_MT[:, 3].isposinf().all()
    assert (out[3] == 0).all()


@pytest.mark.parametrize(
    ("ends", "longest", "lost"),
    [
        ([0, 3, 5], (3, 3), [5, 6]),
        ([2, 4, 7], (3, 3), [0, 1]),
        ([0, 3, 7], (3, 4), [3, 4, 5, 6]),
        ([0, 3, 7], (4, 3), [3, 4, 5, 6]),
        ([0, 3, 7], (4, 4), []),
    ],
)
def test_tokens_outside_of_all_rows_are_not_written(
    ends: list[int], longest: tuple[int, int], lost: list[int]
) -> None:
    q, _ = stream(7, heads=2)
    k, v = (stream(7, heads=2, seed=seed)[0] for seed in (1, 2))
    cut = torch.tensor(ends, dtype=torch.int32)
    out = flash.flash_attn_varlen_func(q, k, v, cut, cut, *longest, causal=True)
    kept = [t for t in range(7) if t not in lost]
    gradients = torch.autograd.grad(out[kept].sum(), (q, k, v))
    for x in (out, *gradients):
        assert x.isnan().all(-1).all(-1).nonzero().flatten().tolist() == lost
        assert x[kept].isfinite().all()


def test_softmax_is_at_least_fp32_for_any_input_and_under_autocast() -> None:
    q, ends = stream(6, 3, heads=2)
    k, v = (stream(6, 3, heads=2, seed=seed)[0] for seed in (1, 2))

    def attend(into: torch.dtype) -> Tensor:
        arguments = [x.bfloat16().to(into) for x in (q, k, v)]
        out: Tensor = flash.flash_attn_varlen_func(
            arguments[0], arguments[1], arguments[2], ends, ends, 6, 6, causal=True
        )
        assert out.dtype == into
        return out

    expected = attend(torch.float64)
    # The result is rounded only once, at the end.
    torch.testing.assert_close(attend(torch.bfloat16), expected.bfloat16(), rtol=2**-8, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(attend(torch.float32), expected.float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_q": torch.tensor([0, 4])}, "cu_seqlens is torch.int64"),
        ({"cu_seqlens_k": torch.tensor([0, 1, 4], dtype=torch.int32)[::2]}, "be contiguous"),
        ({"cu_seqlens_k": torch.tensor([0, 5], dtype=torch.int32)}, "ends at 5 and there are 4"),
        ({"cu_seqlens_q": torch.tensor([0], dtype=torch.int32)}, "one row at least"),
        ({"k": torch.zeros(4, 2, HEAD_DIM, dtype=torch.float32)}, "same dtype"),
        ({"k": torch.zeros(4, 2, 4, dtype=torch.float64)}, "same head dim"),
        ({"k": torch.zeros(4, 1, HEAD_DIM, dtype=torch.float64)}, "same heads"),
        ({"k": torch.zeros(3, 2, HEAD_DIM, dtype=torch.float64)}, "different lengths"),
        ({"q": torch.zeros(4, 3, HEAD_DIM, dtype=torch.float64)}, "must divide"),
        ({"q": torch.zeros(1, 4, 2, HEAD_DIM, dtype=torch.float64)}, "has not 3 dimensions"),
        ({"q": torch.zeros(4, 2, HEAD_DIM, device="meta")}, "a tensor on meta"),
        ({name: torch.zeros(4, 2, 264) for name in "qkv"}, "at most 256"),
        ({"dropout_p": 0.1}, "dropout_p=0.1 is not stood in for"),
        ({"softcap": 30.0}, "softcap=30.0 is not"),
        ({"alibi_slopes": torch.ones(1)}, "alibi_slopes="),
        ({"block_table": torch.ones(1)}, "block_table="),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_arguments_that_the_real_kernel_or_the_stand_in_cannot_take_are_refused(
    change: dict[str, Any], message: str
) -> None:
    x, ends = stream(4, heads=2)
    arguments: dict[str, Any] = {"q": x, "k": x, "v": x}
    arguments |= {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "max_seqlen_q": 4, "max_seqlen_k": 4}
    flash.flash_attn_varlen_func(**arguments)
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        flash.flash_attn_varlen_func(**(arguments | change))


def test_the_stand_in_is_never_installed_on_a_machine_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match="there is a GPU here"):
        flash.install()
    assert "flash_attn" not in sys.modules


def test_the_stand_in_does_not_replace_an_imported_flash_attn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", torch)
    with pytest.raises(RuntimeError, match="another one is imported already"):
        flash.install()


def test_the_stand_in_is_imported_like_the_real_package_and_keeps_additions() -> None:
    flash.install()
    vars(sys.modules["flash_attn.flash_attn_interface"])["more"] = 1
    flash.install()
    names: dict[str, Any] = {}
    exec(
        "import flash_attn, importlib.util\n"
        "from flash_attn import flash_attn_func, flash_attn_varlen_func\n"
        "from flash_attn.flash_attn_interface import flash_attn_func as same, more\n"
        "from flash_attn.bert_padding import (\n"
        "    index_first_axis, index_put_first_axis, pad_input, unpad_input)\n"
        "found = importlib.util.find_spec('flash_attn')\n",
        names,
    )
    assert names["same"] is names["flash_attn_func"] is flash.flash_attn_func
    assert names["found"] is not None
    assert names["flash_attn"].__version__ == "2.8.3"


def test_arguments_have_the_names_order_and_defaults_of_the_release() -> None:
    options = (
        "dropout_p=0.0 softmax_scale=None causal=False window_size=(-1, -1) softcap=0.0 "
        "alibi_slopes=None deterministic=False return_attn_probs=False"
    )
    lengths = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
    for function, signature_text in (
        (flash.flash_attn_func, f"q k v {options}"),
        (flash.flash_attn_varlen_func, f"q k v {lengths} {options} block_table=None"),
    ):
        parameters = signature(function).parameters.values()
        found = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters]
        assert " ".join(found) == signature_text


def test_unpadding_and_padding_again_gives_zeros_and_passes_gradients() -> None:
    attended_BS = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1]])
    table_BSM = torch.arange(18.0).view(3, 3, 2).requires_grad_()
    flat, places, ends, longest, used = unpad_input(table_BSM, attended_BS)
    assert flat[:, 0].tolist() == [0, 2, 14, 16]
    assert (places.tolist(), ends.tolist(), longest) == ([0, 1, 7, 8], [0, 2, 2, 4], 2)
    assert (ends.dtype, used.tolist()) == (torch.int32, [2, 0, 2])
    back = pad_input(flat, places, 3, 3)
    assert torch.equal(back, table_BSM * attended_BS[..., None])
    (gradient,) = torch.autograd.grad((back * back).sum(), table_BSM)
    assert torch.equal(gradient, 2 * back)


def test_a_step_can_demand_that_the_stand_in_ran() -> None:
    x, ends = stream(4, heads=2)
    with pytest.raises(RuntimeError, match="something else did the attention"):
        flash.must_have_run()
    flash.flash_attn_varlen_func(x, x, x, ends, ends, 4, 4)
    assert flash.calls == {"flash_attn_varlen_func": 1}
    flash.must_have_run()
    with pytest.raises(RuntimeError, match="something else did the attention"):
        flash.must_have_run()
    flash.flash_attn_varlen_func(x, x, x, ends, ends, 4, 4)
    with pytest.raises(RuntimeError, match="flash_attn_func was called, only flash_attn_varlen"):
        flash.must_have_run("flash_attn_func")


# It needs a process of its own, since transformers never forgets that flash-attn is available.
PROGRAM = """
import torch, transformers
from harness.candidates.published.flash_stand_in import flash
from harness.huggingface import build
from harness.case import parse

flash.give_to_transformers()
for window in ("", "window=2"):
    case = parse("case/1 rows=5:11111 heads=4/2 layers=2 sp=1 dtype=fp32 " + window)
    model = build(case, torch.device("cpu")).eval()
    ids = torch.arange(10).view(2, 5)
    attended = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    positions = (attended.cumsum(1) - 1).clamp(min=0)
    given = dict(input_ids=ids, attention_mask=attended, position_ids=positions)
    expected = model(**given).logits[attended.bool()]
    assert not flash.calls
    model.set_attn_implementation("flash_attention_2")
    padded = model(**given).logits[attended.bool()]
    flash.must_have_run("flash_attn_varlen_func")
    real = attended.bool()
    packed = model(input_ids=ids[real][None], position_ids=positions[real][None]).logits[0]
    flash.must_have_run("flash_attn_varlen_func")
    first = model(input_ids=ids[:1], position_ids=positions[:1]).logits[0]
    flash.must_have_run("flash_attn_func")
    for out in (padded, packed):
        torch.testing.assert_close(out, expected)
    torch.testing.assert_close(first, expected[:5])
model.config.attn_implementation = "flash_attention_2"
assert type(model)(model.config).config._attn_implementation == "flash_attention_2"
"""


@pytest.mark.slow
def test_transformers_runs_the_stand_in_on_padded_packed_and_single_rows() -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
