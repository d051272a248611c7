"""Each attention kernel by itself, and the native step with each of them.

Legend: T all tokens of the stream, M query heads, C kv heads, H head dim.
"""

from dataclasses import dataclass, replace
from inspect import signature

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import varlen

from harness.candidates.own.native.attention import Segments
from harness.candidates.own.native.kernels import KERNELS
from harness.candidates.own.native.usable import lacking
from harness.case import Case, Dtype, Kernel, parse
from harness.compare import Comparison, Verdict
from harness.compare.elementwise import judge, measure_noise
from harness.generation import cases
from harness.plugin import Evaluate
from harness.reference.weights import TORCH_DTYPES
from harness.report import explain
from harness.trace.trace import Values
from properties.helpers import standins
from properties.helpers.asking import fewer_examples
from properties.helpers.memory import LargestTensor
from properties.helpers.standins import STANDINS, installed, varlen_attn, varlen_attn_of_2_11


@dataclass(frozen=True)
class Stream:
    """Rows end to end, with random queries, keys and values."""

    lengths: list[int]
    window: int | None
    heads: int
    kv_heads: int
    head_dim: int
    seed: int = 0

    def attend(
        self, kernel: str, dtype: str, inputs: str, device: str = "cpu", *, masked: bool = False
    ) -> dict[str, Values]:
        """Run a kernel in one dtype on inputs that another dtype represents exactly.

        Return the output and the gradients of queries, keys and values.
        """
        numbers = torch.Generator().manual_seed(self.seed)

        def drawn(heads: int) -> Tensor:
            # Heads come first, so that what the kernel gets is not contiguous.
            x_MTH = torch.randn(heads, sum(self.lengths), self.head_dim, generator=numbers)
            x_MTH = x_MTH.to(device, TORCH_DTYPES[inputs]).to(TORCH_DTYPES[dtype])
            return x_MTH.transpose(0, 1).requires_grad_()

        segments = self.segments(device)
        if masked:
            segments = Segments.masked(segments.allowed_TT)
        q_TMH, k_TCH, v_TCH = drawn(self.heads), drawn(self.kv_heads), drawn(self.kv_heads)
        out_TMH = KERNELS[kernel](q_TMH, k_TCH, v_TCH, segments)
        out_TMH.backward(drawn(self.heads).detach())
        found = {"layers.0.attn.out": out_TMH.detach()}
        for name, x in (("q", q_TMH), ("k", k_TCH), ("v", v_TCH)):
            assert x.grad is not None
            found[f"grad.{name}"] = x.grad
        # Heads come first, since each slice has a budget: by tokens, the slice of a row's first
        # query would have a gradient of zero.
        return {key: x.transpose(0, 1).double().cpu().numpy() for key, x in found.items()}

    def segments(self, device: str = "cpu") -> Segments:
        positions_T = torch.cat([torch.arange(length) for length in self.lengths])
        return Segments.from_positions(positions_T.to(device), self.window)


@st.composite
def streams(draw: st.DrawFn, max_length: int = 12, head_dims: tuple[int, ...] = (8, 12)) -> Stream:
    length = st.just(1) | st.integers(1, max_length)
    kv_heads = draw(st.sampled_from((1, 2)))
    return Stream(
        lengths=draw(st.lists(length, min_size=1, max_size=5)),
        window=draw(st.sampled_from((None, 1, 2, 5))),
        heads=kv_heads * draw(st.sampled_from((1, 2, 4))),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from(head_dims)),
        seed=draw(st.integers(0, 1 << 16)),
    )


def over_budget(
    stream: Stream, kernel: str, dtype: Dtype, device: str = "cpu"
) -> dict[str, float]:
    """Return the tensors that exceed their budgets, and by what factor."""
    oracle = stream.attend("eager", "fp64", dtype)
    runs = [oracle]
    if dtype != "fp64":
        # Fused attention rounds differently. With a mask it attends to the whole stream at once.
        fused = stream.attend("sdpa", dtype, dtype, masked=True)
        runs = [stream.attend("eager", dtype, dtype), fused]
    got = stream.attend(kernel, dtype, dtype, device)
    baselines = {key: [run[key] for run in runs] for key in oracle}
    noise = measure_noise({key: (oracle[key], baselines[key]) for key in oracle}, dtype)
    judged = {
        key: judge(key, dtype, oracle[key], baselines[key], got[key], noise) for key in oracle
    }
    return {key: result.used for key, result in judged.items() if result.wrong.size}


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
@given(stream=streams())
def test_fused_attention_agrees_with_attention_written_out(dtype: Dtype, stream: Stream) -> None:
    assert over_budget(stream, "sdpa", dtype) == {}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
@pytest.mark.parametrize(("kernel", "function"), STANDINS.values(), ids=STANDINS)
@given(stream=streams())
def test_a_kernel_for_packed_rows_agrees_with_attention_written_out(
    kernel: str, function: standins.StandIn, dtype: Dtype, stream: Stream
) -> None:
    with installed(function):
        assert over_budget(stream, kernel, dtype) == {}


@pytest.mark.needs("cuda")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kernel", ["sdpa", "varlen", "flash"])
@given(stream=streams(max_length=200, head_dims=(8, 12, 64, 128)))
def test_a_kernel_agrees_with_attention_written_out_on_a_gpu(
    kernel: str, dtype: Dtype, stream: Stream
) -> None:
    if lacks := lacking(kernel):
        pytest.skip(f"kernel={kernel}: lacks {' and '.join(lacks)}")
    assert over_budget(stream, kernel, dtype, "cuda") == {}


@pytest.mark.parametrize(("window", "window_size"), [(None, (-1, 0)), (1, (0, 0)), (5, (4, 0))])
@pytest.mark.parametrize(("kernel", "function"), STANDINS.values(), ids=STANDINS)
def test_rows_reach_the_kernel_as_boundaries_and_a_window(
    kernel: str, function: standins.StandIn, window: int | None, window_size: tuple[int, int]
) -> None:
    standins.calls.clear()
    with installed(function):
        Stream([3, 1, 4], window, 4, 2, 12).attend(kernel, "bf16", "bf16")
    (call,) = standins.calls
    bounds = call["cu_seqlens_q" if kernel == "flash" else "cu_seq_q"]
    assert (bounds.tolist(), bounds.dtype) == ([0, 3, 4, 8], torch.int32)
    assert call["max_seqlen_q" if kernel == "flash" else "max_q"] == 4
    assert call["softmax_scale" if kernel == "flash" else "scale"] == 12**-0.5
    assert call["window_size"] == window_size
    assert call.get("causal", True)
    keys = call["k" if kernel == "flash" else "key"]
    assert keys.shape[1] == (4 if function is varlen_attn_of_2_11 else 2)


def test_a_stand_in_has_the_signature_of_the_kernel_it_replaces() -> None:
    real = signature(varlen.varlen_attn).parameters.keys()
    stand_ins = [signature(f).parameters.keys() for f in (varlen_attn, varlen_attn_of_2_11)]
    assert real in stand_ins


def test_a_mask_follows_from_rows_and_window() -> None:
    stream = Stream([2, 1, 3], 2, 1, 1, 2)
    assert stream.segments().allowed_TT.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def test_a_stream_may_begin_inside_a_row() -> None:
    segments = Segments.from_positions(torch.tensor([2, 3, 0, 0, 1]), None)
    assert segments.lengths == [2, 1, 2]
    assert segments.total == 5


@pytest.mark.parametrize(("kernel", "squared"), [("sdpa", False), ("eager", True)])
def test_fused_attention_without_a_window_makes_no_tensor_of_a_squared_row(
    kernel: str, squared: bool
) -> None:
    with LargestTensor() as largest:  # type: ignore[no-untyped-call]
        Stream([512], None, 2, 1, 8).attend(kernel, "fp32", "fp32")
    assert (largest.numbers >= 512**2) is squared


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
def test_a_rank_on_the_cpu_refuses_a_kernel_that_needs_a_gpu(kernel: str) -> None:
    message = f"kernel={kernel}: runs on CUDA, and this rank is on device=cpu; use --device cuda"
    with pytest.raises(ValueError, match=message):
        Stream([2], None, 1, 1, 8).attend(kernel, "bf16", "bf16")


@pytest.mark.parametrize("kernel", ["varlen", "flash"])
def test_a_kernel_for_packed_rows_refuses_a_mask(kernel: str) -> None:
    x_TMH = torch.ones(2, 1, 8)
    mask = Segments.masked(torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=f"kernel={kernel}: takes rows and no mask"):
        KERNELS[kernel](x_TMH, x_TMH, x_TMH, mask)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["VARLEN", "VARLEN_2_11", "FLASH"])
@fewer_examples
@given(case=cases(max_ranks=4, dtypes=("fp64", "bf16")))
def test_the_native_path_is_plain_training_with_a_kernel_for_packed_rows(
    harness_evaluate: Evaluate, name: str, case: Case
) -> None:
    comparison = evaluate_with(harness_evaluate, name, case)
    assert comparison.verdict.passed, explain(comparison)


@pytest.mark.slow
@pytest.mark.wrong_on_purpose
@pytest.mark.parametrize("name", ["VARLEN_OF_ONE_ROW", "FLASH_LATE"])
def test_wrong_row_boundaries_are_found(harness_evaluate: Evaluate, name: str) -> None:
    comparison = evaluate_with(harness_evaluate, name, parse("case/1 rows=3:111,4:1111 sp=2"))
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.measured.first is not None
    assert comparison.measured.first.key == "layers.0.attn.out"


def evaluate_with(harness_evaluate: Evaluate, name: str, case: Case) -> Comparison:
    """Judge the native step on a case, with a stand-in for its kernel."""
    kernel: Kernel = "flash" if name.startswith("FLASH") else "varlen"
    return harness_evaluate(replace(case, kernel=kernel), f"{standins.__file__}:{name}")
