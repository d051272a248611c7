"""The acceptance rules of published test suites, written down from their sources.

Sizes are scaled down, so that a case takes a moment; each note lists what differs from the source.
"""

from dataclasses import replace

from harness.case import Case, parse
from properties.rivals.rule import (
    DEFAULT,
    Check,
    Rival,
    Tolerance,
    five_decimals,
    mean,
    norm,
    off_by_largest,
    off_by_norm,
    singles,
    supervised,
    zeros,
)

LOSS, LOGITS, GRADIENTS, OUTPUTS = "loss", "logits", "grad.*", "*.attn.out"
# Several suites compare the gradient of one weight only, the query projection of layer 0.
FIRST_Q = "grad.layers.0.q"
# Rows with 0.8 to 0.9 of 64 columns, the share that verl's random mask leaves.
EIGHT_ROWS = ",".join(f"{n}:1{{{n}}}" for n in (51, 57, 53, 55, 52, 56, 54, 51))
# Sixteen rows, each a question and its answer.
SIXTEEN_ROWS = ",".join(f"{q + a}:0{{{q}}}1{{{a}}}" for q, a in ((18, 12), (14, 18)) * 8)
# Megatron's bound, k x C^(L + 1 - l) x epsilon of bfloat16, with its constants and its layer.
GRADIENT_BOUND = 4.0 * 1.03**33 * 2.0**-7


def shapes(common: str, *variants: str) -> tuple[Case, ...]:
    """Parse one case for each variant, with the fields that all have in common."""
    return tuple(parse(f"case/1 {common} {fields}") for fields in variants or ("",))


def equal_rows(count: int, length: int) -> str:
    return "rows=" + ",".join([f"{length}:1{{{length}}}"] * count)


def close(pattern: str, rtol: float, atol: float) -> Check:
    return Check(pattern, Tolerance(rtol, atol))


def close_to_plain(pattern: str, rtol: float, atol: float) -> Check:
    return Check(pattern, Tolerance(rtol, atol), is_relative_to_plain=True)


def by_dtype(case: Case) -> Tolerance:
    return DEFAULT[case.dtype]


def transformer_engine(case: Case) -> Tolerance:
    if case.dtype == "fp16":
        return Tolerance(5e-3, 5e-3)
    # The suite does not test fp32 and fp64; here they have the bounds of bf16.
    bound = 2.5e-2 if case.heads == case.kv_heads else 3.5e-2
    return Tolerance(bound, bound)


SAME_LOSS = Check(LOSS, Tolerance(), singles)
DEEPSPEED = "deepspeedai/DeepSpeed: tests/unit/ulysses_alst/test_ulysses_sp_hf.py"
ROW = "rows=6:111111 ids=[1,10,10,10,2,2] heads=4/4 dim=4 layers=2 vocab=32 sp=2"
SCALED = (
    "The vocabulary of the tiny Llama is 32 in place of 32000; its only batch is unchanged. With "
    "the seed chosen here, native sequence parallelism gives exactly the same loss."
)
ZERO2 = Rival(
    "deepspeed-zero2",
    DEEPSPEED,
    shapes(f"{ROW} dtype=bf16 seed=3"),
    (SAME_LOSS, close(FIRST_Q, 1.6e-2, 1e-3)),
    note=SCALED,
)
ZERO3 = Rival(
    "deepspeed-zero3",
    DEEPSPEED,
    shapes(f"{ROW} dtype=fp32 seed=2"),
    (SAME_LOSS, Check(FIRST_Q, by_dtype)),
    note=f"{SCALED} It computes in bfloat16 and compares float32 copies. With gradients as large "
    "as those here it would reject every step that sums in another order, so here it is float32.",
)
NEAR_LOSS = close(LOSS, 1e-5, 1e-5)

RIVALS: tuple[Rival, ...] = (
    Rival(
        "verl-model",
        "verl-project/verl: tests/models/test_transformers_ulysses.py",
        shapes(
            f"rows={EIGHT_ROWS} layers=2 dim=4 vocab=64 dtype=bf16",
            *("heads=32/32 sp=8", "heads=28/4 sp=4 dp=2", "heads=32/4 sp=4 dp=2"),
            "heads=32/4 sp=8",
        ),
        (Check(LOGITS, Tolerance(1e-2, 3e-5), mean), close_to_plain(FIRST_Q, 1e-2, 1e-3)),
        note="128 columns are 64, a head has 4 dims in place of 128, the vocabulary 64 entries. "
        "It differentiates the mean of logits and compares each rank's own gradient before any "
        "reduction; here it is given the gradient of the loss, reduced. Its shape of 28/4 heads "
        "over 8 ranks must be rejected, and the one with sparse attention is not expressible.",
    ),
    Rival(
        "verl-log-probs",
        "verl-project/verl: tests/special_distributed/test_fused_kernels_ulysses_sp.py",
        shapes("rows=32:1{32} heads=8/8 dim=8 layers=2 vocab=256 sp=2 dtype=bf16"),
        (Check("nll", Tolerance(1e-3, 1e-3), supervised, is_relative_to_plain=True),),
        note="Here only supervised tokens have log-probabilities. No workflow runs the original.",
    ),
    Rival(
        "verl-training",
        "verl-project/verl: tests/special_e2e/sft/compare_sft_engine_results.py",
        shapes(
            f"rows={SIXTEEN_ROWS} heads=14/2 dim=4 layers=2 vocab=64 tied=1 sp=2 dp=4 micro=2 "
            "dtype=bf16"
        ),
        (close(LOSS, 1e-2, 1e-2), Check(GRADIENTS, Tolerance(3e-2, 1e-4), norm)),
        note="128 rows of GSM8K are 16, 24 layers are 2, hidden size 896 is 56.",
    ),
    ZERO2,
    ZERO3,
    replace(ZERO2, name="deepspeed-flex-zero2", checks=(NEAR_LOSS, *ZERO2.checks[1:])),
    replace(ZERO3, name="deepspeed-flex-zero3", checks=(NEAR_LOSS, *ZERO3.checks[1:])),
    Rival(
        "arctic-training",
        "snowflakedb/ArcticTraining: tests/trainer/test_ulysses_alst.py",
        shapes(
            "rows=128:0{40}1{88},120:0{70}1{50} heads=4/4 dim=4 layers=2 vocab=64 sp=2 micro=2 "
            "loss=micro-mean dtype=bf16"
        ),
        (close(LOSS, 1e-6, 1e-6),),
        note="Chats of up to 1024 tokens are 128, the vocabulary is 64 in place of 32000. Plain "
        "training has one row on each of two ranks there, and both in one batch here.",
    ),
    Rival(
        "transformers",
        "huggingface/transformers: tests/deepspeed/test_alst_ulysses_sp.py",
        shapes(
            "heads=4/4 dim=4 layers=2 vocab=64 sp=2 dtype=fp32",
            *("rows=128:1{128}", "rows=112:1{112}", "rows=128:1{128} steps=10"),
        ),
        (close_to_plain(LOSS, 2e-5, 2e-2),),
        note="The vocabulary of the tiny Llama is 64 in place of 32000. The first and the last "
        "of ten steps are shapes of their own, both on the same row.",
    ),
    Rival(
        "megatron-training",
        "NVIDIA/Megatron-LM: "
        "tests/functional_tests/python_test_utils/test_pretraining_regular_pipeline.py",
        shapes(
            f"{equal_rows(32, 16)} heads=8/8 layers=2 vocab=512 micro=8 dtype=bf16",
            *("sp=2 loss=micro-mean", "sp=2 loss=token-mean", "sp=4 loss=micro-mean"),
        ),
        (
            Check(LOSS, Tolerance(rtol=0.05), five_decimals, is_relative_to_plain=True),
            Check(GRADIENTS, Tolerance(rtol=0.20), zeros, is_relative_to_plain=True),
        ),
        note="Rows of 1024 tokens are 16, 12 layers are 2, hidden size 512 is 64, tensor and "
        "pipeline parallelism are left out. It compares a configuration with an earlier run of "
        "the same configuration; here with plain training, hence without its exact mode. One of "
        "its 100 steps may miss the bound; of one step none may.",
    ),
    Rival(
        "megatron-gradients",
        "NVIDIA/Megatron-LM: "
        "tests/functional_tests/python_test_utils/test_optimizer_grads_match.py",
        shapes(f"{equal_rows(2, 256)} heads=32/8 dim=4 layers=2 sp=2 dtype=bf16"),
        (Check(GRADIENTS, Tolerance(atol=GRADIENT_BOUND), off_by_norm),),
        note="Rows of 512 tokens are 256, 32 layers are 2, hidden size 3072 is 128, the "
        "vocabulary is 32. Its gradients are clipped to norm 1 first, which hides a common "
        "factor, and all layers are one tensor; here neither. It also fails where all gradients "
        "are below 1e-4. That is left out: it says nothing about a candidate, and a batch "
        "without targets has no others.",
    ),
    Rival(
        "veomni-training",
        "ByteDance-Seed/VeOmni: tests/e2e/test_e2e_parallel.py",
        shapes(
            f"{equal_rows(8, 64)} layers=2 dim=4 vocab=64 sp=2 dp=2 micro=4 dtype=bf16",
            *("heads=12/2 tied=1", "heads=12/2 tied=1 steps=2", "heads=32/8"),
        ),
        (
            close_to_plain(LOSS, 0.1, 0.1),
            Check(GRADIENTS, Tolerance(0.1, 0.1), norm, is_relative_to_plain=True),
        ),
        note="Rows of 2048 tokens are 64, hidden sizes 1536 and 4096 are 48 and 128, the 4 layers "
        "of the second model are 2. tests/distributed/test_fsdp_equivalence.py has the same "
        "tolerances and leaves the loss out.",
    ),
    Rival(
        "veomni-attention",
        "ByteDance-Seed/VeOmni: tests/parallel/ulysses/test_ulysses.py",
        shapes(
            "heads=16/16 dim=4 layers=1 vocab=64 sp=2 dtype=fp32",
            equal_rows(2, 256),
            equal_rows(2, 255),
        ),
        (
            close(OUTPUTS, 1e-5, 1e-6),
            close("grad.layers.*.o", 1e-4, 1e-3),
            close("grad.layers.*.q", 1e-4, 2e-3),
        ),
        note="Rows of 8192 and 8191 tokens are 256 and 255, a head has 4 dims in place of 64. Its "
        "module has no causal mask and sums its output; here it stands in a decoder, whose every "
        "layer is compared. The gradient of its input is left out: no trace holds it.",
    ),
    Rival(
        "ms-swift",
        "modelscope/ms-swift: pull/10191",
        shapes(
            "layers=2 vocab=64 sp=2 dtype=fp32",
            *("rows=16:1{16} heads=4/2", "rows=16:1{16} heads=4/1"),
            # The first rank holds only a prompt, and no target.
            "rows=16:0{9}1{7} heads=4/2",
        ),
        tuple(
            Check(pattern, by_dtype, is_relative_to_plain=True) for pattern in (LOSS, GRADIENTS)
        ),
        note="An open pull request, known from its thread: two processes on a CPU, 72 "
        "combinations, all trainable gradients, one rank with nothing but a prompt. Tolerances, "
        "dtype and sizes could not be read; those here are a guess.",
    ),
    Rival(
        "twinkle",
        "modelscope/twinkle: tests/transformers/test_sequence_parallel_and_cp.py",
        shapes(
            "heads=8/8 dim=8 layers=1 vocab=64 sp=2 dtype=bf16",
            *(equal_rows(3, 193), "rows=257:1{257},171:1{171},86:1{86}"),
        ),
        (
            close_to_plain(LOGITS, 1e-2, 5e-3),
            close_to_plain(LOSS, 0.0, 5e-3),
            close_to_plain("grad.layers.*.[qkvo]", 2e-2, 1e-2),
        ),
        note="Rows of 769, 513 and 257 tokens are a third, equal ones a quarter; a head has 8 "
        "dims in place of 16, the vocabulary 64 entries in place of 256. Its cases with fewer "
        "heads than ranks need a ring. The file is marked to be skipped.",
    ),
    # The repository of yunchang is called long-context-attention.
    Rival(
        "yunchang",
        "feifeibear/long-context-attention: test/test_hybrid_attn.py",
        shapes("rows=512:1{512} heads=32/32 dim=4 layers=1 dtype=bf16", "sp=2", "sp=4"),
        (close_to_plain(OUTPUTS, 0.0, 0.1),),
        note="1024 tokens are 512, a head has 4 dims in place of 64. Its gradients are printed, "
        "not compared.",
    ),
    Rival(
        "torchtitan-loss",
        "pytorch/torchtitan: scripts/loss_compare.py",
        shapes(f"{equal_rows(8, 64)} heads=16/16 dim=4 layers=2 vocab=64 sp=2 dp=4 dtype=bf16"),
        (SAME_LOSS,),
        note="Neither run of its comparison is sequence parallel: 8 shards against 4 times 2, "
        "here 4 replicas of 2 ranks. Rows of 2048 tokens are 64, 6 layers are 2, hidden size 256 "
        "is 64, the vocabulary 64 in place of 2048.",
    ),
    Rival(
        "torchtitan-logits",
        "pytorch/torchtitan: torchtitan/experiments/transformers_modeling_backend/tests/"
        "test_flex_cp_numerical.py",
        shapes("rows=256:1{256} heads=16/16 dim=4 layers=2 vocab=64 sp=2 dtype=fp32"),
        (Check(LOGITS, Tolerance(atol=1e-4), off_by_largest),),
        note="Hidden size 256 is 64, the vocabulary is 64. No workflow runs the original.",
    ),
    Rival(
        "transformer-engine",
        "NVIDIA/TransformerEngine: tests/pytorch/attention/run_attention_with_cp.py",
        shapes(
            "dim=8 layers=1 vocab=64 sp=2 dtype=bf16",
            f"{equal_rows(2, 256)} heads=12/12",
            f"{equal_rows(2, 256)} heads=12/12 window=32",
            f"{equal_rows(2, 256)} heads=32/4",
            "rows=250:1{250},187:1{187} heads=12/12",
        ),
        tuple(Check(pattern, transformer_engine) for pattern in (OUTPUTS, "grad.layers.*.[qkv]")),
        note="Rows of 4096 tokens are 256, a window of 512 is 32, a head has 8 dims in place of "
        "128. No trace holds the gradients of queries, keys and values; those of the weights that "
        "make them stand in, and are smaller.",
    ),
    Rival(
        "pytorch",
        "pytorch/pytorch: test/distributed/tensor/test_attention.py",
        shapes(f"{equal_rows(8, 64)} heads=8/8 dim=4 layers=1 vocab=64 sp=2 dtype=bf16"),
        # Both bounds grow with the number of ranks. 1e-5 is the default of torch.allclose.
        (
            Check(OUTPUTS, lambda case: Tolerance(1e-5, 1e-3 * case.sp)),
            Check("grad.layers.*.[qkv]", lambda case: Tolerance(1e-5, 8e-3 * case.sp)),
        ),
        note="Rows of 128 tokens are 64, a head has 4 dims in place of 32. No trace holds the "
        "gradients of queries, keys and values; those of the weights that make them stand in, and "
        "are smaller. Its count of collectives is left out. Not read in its newest version.",
    ),
    Rival(
        "accelerate",
        "huggingface/accelerate: "
        "src/accelerate/test_utils/scripts/external_deps/test_ds_alst_ulysses_sp.py",
        shapes("rows=32:1{32} heads=4/4 dim=4 layers=2 vocab=64 sp=2 dtype=fp32 steps=4"),
        (),
        note="Four steps of training must end without an exception. The vocabulary of the tiny "
        "Llama is 64 in place of 32000; four rows in four steps are one.",
    ),
    Rival(
        "ring-flash-attention",
        "zhuzilin/ring-flash-attention: test/test_ring_flash_attn_func.py",
        shapes(
            "heads=8/8 dim=8 layers=1 sp=8 dtype=bf16",
            *("rows=480:1{480}", "rows=15:1{15},141:1{141},373:1{373}"),
        ),
        (),
        note="Largest and mean differences are printed. Rows of 3816, and of 120, 1128 and 2984 "
        "tokens, are an eighth; 5 heads are 8, because its ring does not cut heads and Ulysses "
        "does.",
    ),
)
