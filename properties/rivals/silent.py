"""Suites that run the sequence-parallel path and compare nothing."""

from harness.case import Case, parse
from harness.trace import Trace
from properties.rivals.rule import Rival


def _anything(_case: Case, _plain: Trace, _candidate: Trace) -> bool:
    # A NaN as well: nothing looks at a number.
    return True


SILENT = (
    Rival(
        name="accelerate",
        source="huggingface/accelerate: "
        "src/accelerate/test_utils/scripts/external_deps/test_ds_alst_ulysses_sp.py",
        compares="Nothing: four steps of training must end without an exception.",
        needs=(),
        accepts=_anything,
        shapes=(
            parse(
                "case/1 rows=32:1{32} heads=4/4 dim=4 layers=2 vocab=64 sp=2 dtype=fp32 steps=4"
            ),
        ),
        note="The vocabulary of the tiny Llama is 64 in place of 32000; four rows in four steps "
        "are one.",
    ),
    Rival(
        name="ring-flash-attention",
        source="zhuzilin/ring-flash-attention: test/test_ring_flash_attn_func.py",
        compares="Nothing: largest and mean differences are printed.",
        needs=(),
        accepts=_anything,
        shapes=tuple(
            parse(f"case/1 {rows} heads=8/8 dim=8 layers=1 sp=8 dtype=bf16")
            for rows in ("rows=480:1{480}", "rows=15:1{15},141:1{141},373:1{373}")
        ),
        note="Rows of 3816, and of 120, 1128 and 2984 tokens, are an eighth; 5 heads are 8, "
        "because its ring does not cut heads and Ulysses does.",
    ),
)
