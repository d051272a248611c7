"""`explain` names the case, the place, the values, what follows, and the command."""

from harness.case import parse
from harness.compare import Divergence, KeyResult, RanOn, Scale, Verdict, fault_comparison
from harness.report import explain
from harness.trace import Fault, Kind, Misfit, MisfitKind
from properties.helpers.comparisons import changed, comparison_with

CASE = parse("case/1 rows=5:11111,2:11 heads=2 dim=2 sp=2")
LINE = "case/1 rows=5:11111,2:11 heads=2/2 layers=1 vocab=32 sp=2 dp=1 dim=2 dtype=fp64 seed=0"
REPLAY = f'python -m harness repro "{LINE}" --candidate'
NLL = "nll differs at 1 of 5 supervised tokens"


def diverged(
    first: Divergence | None,
    *,
    scale: Scale | None = None,
    misfits: tuple[Misfit, ...] = (),
    silent: bool = False,
) -> list[str]:
    """Return the lines that explain a divergence."""
    comparison = comparison_with(
        case=CASE,
        candidate="planted",
        verdict=Verdict.DIVERGED,
        first=first,
        misfits=misfits,
        keys=(
            KeyResult("nll", 5, 1, 9.0),
            KeyResult("grad.a", 4, 4, 9.0),
            KeyResult("grad.b", 2, 0, 0),
        ),
        scale=scale,
        silent=silent,
    )
    return explain(comparison).splitlines()


def test_a_divergence_is_explained_by_place_value_and_consequence() -> None:
    first = Divergence("layers.0.attn.q", (4, 1, 0), 19.0, 19.5, 0.5, 2e-11, 0, 4, 1, "first")
    edge = "the first token of rank 1's shard in this row"
    assert diverged(first) == [
        "DIVERGED  candidate planted",
        f"  case    {LINE}",
        f"  first   layers.0.attn.q, row 0 position 4, head 1, {edge}",
        "  value   expected 19, got 19.5; off by 0.5, allowed 2e-11",
        f"  then    {NLL}; 1 of 2 gradients differ (not proportional)",
        f'  replay  python -m harness repro "{LINE}" --candidate planted',
    ]


def test_labels_are_shown_as_whole_numbers_and_elements_of_weights_by_index() -> None:
    label = Divergence("labels", (1,), 17.0, 5.0, 12.0, 0.0, 0, 1, 0)
    assert diverged(label)[2:4] == [
        "  first   labels, row 0 position 1, held by rank 0",
        "  value   expected 17, got 5",
    ]
    weight = Divergence("grad.a", (1, 0), 0.5, 1.0, 0.5, 1e-13)
    assert diverged(weight)[2] == "  first   grad.a element [1, 0]"


def test_misfits_a_factor_of_all_gradients_and_a_missing_exchange_are_explained() -> None:
    misfits = (
        Misfit(MisfitKind.LOST, "nll", (4, 5)),
        Misfit(MisfitKind.TWICE, "q", (0, 1, 2, 3), (0, 1)),
        Misfit(MisfitKind.SPLIT, "loss", ranks=(1,), detail="rank 0 holds 2.5, rank 1 3.0"),
    )
    lines = diverged(None, scale=Scale(2.0, "sp"), misfits=misfits, silent=True)
    assert lines[2:-1] == [
        "  found   nll: row 0 position 4, row 1 position 0 reported by no rank",
        "  found   q: row 0 position 0 to 3 reported twice, by ranks [0, 1]",
        "  found   loss: rank 1 holds another copy than rank 0: rank 0 holds 2.5, rank 1 3.0",
        f"  then    {NLL}; 1 of 2 gradients differ; no rank sent anything to another",
        "  looks   every gradient is 2 of the reference = sp",
    ]


def test_a_fault_is_explained_by_rank_key_and_stack() -> None:
    fault = Fault(
        kind=Kind.RAISED,
        summary="rank 1 raised ValueError: no",
        rank=1,
        last_key="nll",
        ranks=("rank 0: waits in all_to_all #3", "rank 1: is in no collective"),
        stacks={0: "the other rank", 1: "line one\nline two\n"},
        log="W a warning",
    )
    comparison = changed(
        fault_comparison(CASE, "my file.py:STEP", fault), ran_on=RanOn("pretend", "gloo", 4, 60.0)
    )
    assert explain(comparison).splitlines() == [
        "FAULT     candidate my file.py:STEP",
        f"  case    {LINE}",
        "  fault   raised: rank 1 raised ValueError: no",
        "  where   last key reached: nll",
        "  ranks   rank 0: waits in all_to_all #3",
        "          rank 1: is in no collective",
        "  stack   of rank 1",
        "          line one",
        "          line two",
        "  log     W a warning",
        f"""  replay  {REPLAY} 'my file.py:STEP' --device pretend --deadline 60""",
    ]


def test_the_replay_of_a_cuda_error_waits_for_each_launch() -> None:
    summary = "rank 1 raised AcceleratorError: CUDA error: device-side assert triggered"
    found = fault_comparison(
        CASE, "mine.py:STEP", Fault(kind=Kind.RAISED, summary=summary, rank=1)
    )
    assert "  replay  CUDA_LAUNCH_BLOCKING=1 python -m harness repro" in explain(found)
