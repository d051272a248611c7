"""Hypothesis strategies for cases: valid by construction, shrinking towards the boring.

    @given(cases(sps=(2, 4)))
    def test_my_path_equals_plain_training(case): ...

The simplest case is one short row, all supervised, one layer, sp 2.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from harness.case import Case, Dtype, LossContract, Row

DTYPES: tuple[Dtype, ...] = ("fp64",)
LOSSES: tuple[LossContract, ...] = ("token-mean", "micro-mean", "row-mean")


@st.composite
def rows(draw: st.DrawFn, *, min_length: int = 1, max_length: int = 12) -> Row:
    """One ragged row: fully supervised, a prompt and an answer, holes, or nothing at all."""
    length = draw(st.integers(min_length, max_length), label="length")
    shape = draw(st.sampled_from(("all", "prompt", "holes", "none")), label="mask shape")
    if shape == "prompt":
        prompt = draw(st.integers(0, length), label="prompt")
        mask = "0" * prompt + "1" * (length - prompt)
    elif shape == "holes":
        bits = draw(
            st.lists(st.booleans(), min_size=length, max_size=length), label="unsupervised"
        )
        mask = "".join("0" if bit else "1" for bit in bits)
    else:
        mask = ("1" if shape == "all" else "0") * length
    return Row(mask, draw(st.sampled_from(("right", "left")), label="side"))


@st.composite
def meshes(
    draw: st.DrawFn,
    *,
    sps: Sequence[int] = (2, 1, 3, 4),
    dps: Sequence[int] = (1, 2),
    max_ranks: int | None = None,
) -> tuple[int, int]:
    """(sp, dp) that fit a pool."""
    fitting = [(sp, dp) for dp in dps for sp in sps if max_ranks is None or sp * dp <= max_ranks]
    return draw(st.sampled_from(fitting), label="mesh")


@st.composite
def models(draw: st.DrawFn, sp: int, *, max_layers: int = 2) -> dict[str, int | bool | None]:
    """Model fields of a case that `sp` ranks can share."""
    # kv heads on a rank, or ranks to a kv head; then query heads to a kv head.
    if draw(st.booleans(), label="kv heads repeated"):
        kv_heads = draw(st.sampled_from([n for n in range(1, sp + 1) if sp % n == 0]))
        heads = sp * draw(st.integers(1, 2), label="heads per rank")
    else:
        kv_heads = sp * draw(st.integers(1, 2), label="kv heads per rank")
        heads = kv_heads * draw(st.integers(1, 2), label="queries per kv head")
    return {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from((4, 2, 8)), label="head dim"),
        "layers": draw(st.integers(1, max_layers), label="layers"),
        "vocab": draw(st.sampled_from((16, 5, 32)), label="vocab"),
        "tied": draw(st.booleans(), label="tied"),
        "window": draw(st.none() | st.integers(1, 8), label="window"),
    }


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    sps: Sequence[int] = (2, 1, 3, 4),
    dps: Sequence[int] = (1, 2),
    max_ranks: int | None = None,
    dtypes: Sequence[Dtype] = DTYPES,
    losses: Sequence[LossContract] = LOSSES,
    max_rows: int = 4,
    max_length: int = 12,
    max_layers: int = 2,
) -> Case:
    """Any case within the bounds."""
    sp, dp = draw(meshes(sps=sps, dps=dps, max_ranks=max_ranks))
    per_replica = draw(st.integers(1, max_rows), label="rows per replica")
    batch = draw(
        st.lists(
            rows(max_length=max_length), min_size=dp * per_replica, max_size=dp * per_replica
        ),
        label="rows",
    )
    return Case(
        rows=tuple(batch),
        sp=sp,
        dp=dp,
        micro_batches=draw(st.integers(1, per_replica), label="micro-batches"),
        loss=draw(st.sampled_from(losses), label="loss"),
        dtype=draw(st.sampled_from(dtypes), label="dtype"),
        kernel=draw(st.sampled_from(("eager", "sdpa")), label="kernel"),
        checkpoint=draw(st.booleans(), label="checkpoint"),
        seed=draw(st.integers(0, 1 << 16), label="seed"),
        **draw(models(sp, max_layers=max_layers)),  # type: ignore[arg-type]
    )
