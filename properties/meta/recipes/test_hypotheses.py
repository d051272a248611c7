"""Each hypothesis predicts gradients that neither plain training nor another hypothesis has."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.anomalies import ANOMALIES
from harness.case import Case, parse
from harness.judge.term_diagnosis import MISWEIGHTED
from harness.recipes import Recipe, Step, computed, row, target, token
from harness.recipes.attention_mask import seeing
from harness.recipes.batch import IGNORED, Batch
from harness.recipes.calls import MODEL_MASK, MODEL_POSITIONS, Calls
from harness.recipes.columns import Column
from harness.recipes.hypotheses.operations import of_operations
from harness.recipes.hypotheses.terms import of_terms
from harness.recipes.hypothesis import computing_with
from harness.recipes.recipe import _model_of_hypotheses
from properties.planted.tiny import Attention, Tiny, next_labels

# Rows of unequal lengths, padded on both sides, on two replicas of two micro-batches, so that no
# two hypotheses come to the same. The first micro-batch has three rows, whose order by length is
# not undone by sorting twice.
SIZES = "heads=2 window=2 vocab=23 sp=2 dp=2 micro=2"
CASES = [
    parse(f"case/1 rows={rows} {SIZES}")
    for rows in (
        "7:0111111,4:0111:left,3:011,7:0111111,5:01101:left,5:01111,4:0111,6:011011,5:01111,2:01",
        "7:0111111:left,5:01111:left,7:0111111,3:011:left",
    )
]


def next_losses(model: Any, batch: Batch) -> Tensor:
    logits_BSV = model(batch["input_ids"], batch["position_ids"], batch["attention_mask"])
    losses_BS: Tensor = F.cross_entropy(
        logits_BSV.movedim(-1, 1), next_labels(batch), ignore_index=IGNORED, reduction="none"
    )
    return losses_BS


def made(model: Any, batch: Batch) -> Tensor:
    """A number for each token, also for the last of a row."""
    return next_losses(model, batch) + batch["attention_mask"]


COLUMNS: dict[str, Column] = {
    "by_row": row(1, 2),
    "by_token": token(1, 2),
    "by_target": target(1, 2),
    "made": computed(made),
}


class Scores(nn.Module):
    """Attention that is handed its mask as in transformers."""

    is_causal = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, attention_mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)


class Hybrid(Tiny):
    """Has a layer with a state, and shows its sinks, a bias and its window in what it computes."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.window, self.scores = case.window, Scores()
        self.sinks = nn.Parameter(torch.zeros(case.heads))
        self.o_proj = nn.Linear(self.embed.embedding_dim, self.embed.embedding_dim)
        for module in self.modules():
            if isinstance(module, Attention):
                module.attend = self.see

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def see(self, q: Tensor, k: Tensor, v: Tensor, real_BS: Tensor, first: Any = 0) -> Tensor:
        del first
        place_S = torch.arange(real_BS.shape[1])
        seen_BSS = (place_S[:, None] >= place_S) & real_BS[:, None]
        seen_BSS |= place_S[:, None] == place_S
        out: Tensor = self.scores(q, k, v, attention_mask=seen_BSS[:, None])
        return out

    def forward(self, ids_BL: Tensor, positions_BL: Tensor, mask_BS: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL) + self.places(positions_BL)
        x_BLD = x_BLD + self.o_proj(0 * x_BLD) + self.sinks.clamp(min=-1).sum()
        x_BLD = x_BLD + (x_BLD * mask_BS[..., None]).cumsum(1)
        for block in self.blocks:
            x_BLD = block(x_BLD, mask_BS.bool())
        logits_BLV: Tensor = self.head(x_BLD)
        return logits_BLV * (1 + (self.window or 0)) / 8


def weighted(model: Any, batch: Batch) -> Any:
    """A loss that reads all columns, their sums and squares, divided by all targets and tokens.

    It also reads where the mask is, and what a row's last token says, limits losses, holds some
    constant, and has a teacher. Its term reads labels and the mask.
    """
    count = (batch["labels"] != IGNORED).sum().clamp(min=1)
    later_BS = batch["by_token"].flip(1).cumsum(1).flip(1)
    weight_BS = batch["by_row"][:, None] * later_BS * (2 + batch["by_target"].roll(-1, 1))
    own_BS, tokens = next_losses(model, batch), batch["attention_mask"].sum()
    # The number behind the label, as of the value that follows.
    made_BS = F.pad(batch["made"][:, 2:], (0, 2))
    losses_BS = own_BS * weight_BS * (1 + made_BS) * (1 + batch["attention_mask"])
    loss = losses_BS.sum() / count / (1 + batch["by_target"].square().sum() / count)
    loss = loss + said_last(model, batch).square().sum() / count + limited(own_BS) / count
    loss = loss + taught(model, batch) / count
    return loss / (1 + tokens), {"term": own_BS.sum() / tokens + spread(model, batch)}


def limited(losses_BS: Tensor) -> Tensor:
    """A sum in which some losses are at their limit, weighed by what is held constant."""
    free_BS, near_BS = losses_BS, 2 * losses_BS.clamp(max=3)
    return (torch.max(free_BS.square(), near_BS) * near_BS.detach()).sum()


def said_last(model: Any, batch: Batch) -> Tensor:
    """The first logit of each row's last token, as a reward."""
    real_BS = batch["attention_mask"]
    logits_BSV = model(batch["input_ids"], batch["position_ids"], real_BS)
    is_last_BS = real_BS * (1 - F.pad(real_BS[:, 1:], (0, 1)))
    said_B: Tensor = (logits_BSV[..., 0] * is_last_BS).sum(1)
    return said_B


def taught(model: Any, batch: Batch) -> Tensor:
    """The cross-entropy with what the model itself says, taken for constant, as of a teacher."""
    given = batch["input_ids"], batch["position_ids"], batch["attention_mask"]
    with torch.no_grad():
        teacher_BSV = model(*given).softmax(-1)
    losses_BS: Tensor = -(teacher_BSV * model(*given).log_softmax(-1)).sum(-1)
    # As large as the rest of the loss, so that a change of the teacher shows.
    return 1000 * (losses_BS * batch["attention_mask"]).sum()


def spread(model: Any, batch: Batch) -> Tensor:
    """The product of two means over tokens, as in the balance of a router."""
    mask_BS = batch["attention_mask"]
    shares_BSV: Tensor = model(batch["input_ids"], batch["position_ids"], mask_BS).softmax(-1)
    means_V = (shares_BSV * mask_BS[..., None]).sum((0, 1)) / mask_BS.sum()
    return means_V.square().sum()


STEP = Step(lambda: None, Recipe(Hybrid, weighted, COLUMNS), micro_batches=True, limits="",
            supports=None)  # fmt: skip


class Here:
    device = torch.device("cpu")


def gradients(variant: str, case: Case) -> Tensor:
    taken: list[Tensor] = []

    def emit(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
        del tokens
        if key.startswith("grad."):
            taken.append(tensor.flatten())

    STEP.run_plain(case, Here(), emit, variant, exactly=True)  # type: ignore[arg-type]
    return torch.cat(taken)


@pytest.mark.slow
def test_no_two_hypotheses_predict_the_same() -> None:
    variants = ("plain", *STEP.hypotheses)
    assert len(variants) > 29
    found = {name: torch.cat([gradients(name, case) for case in CASES]) for name in variants}
    for number, name in enumerate(variants):
        for other in variants[:number]:
            is_scaled = name.startswith("gradient-scaled") and other == "plain"
            if is_scaled or name.replace("added up", "averaged") == other:
                # They differ by a factor, which a case decides whose gradients are only scaled.
                assert not torch.allclose(found[name], found[other]), f"{name} and {other}"
                continue
            # Directions, because a hypothesis may fit with a factor.
            cosine = torch.cosine_similarity(found[name], found[other], dim=0)
            assert cosine < 1 - 1e-6, f"{name} and {other}"


@pytest.mark.slow
def test_what_a_hypothesis_predicts_does_not_depend_on_the_one_before() -> None:
    case = CASES[1]
    alone = {}
    for name in STEP.hypotheses:
        _model_of_hypotheses.cache_clear()
        alone[name] = gradients(name, case)
    for name in reversed(STEP.hypotheses):
        assert torch.equal(gradients(name, case), alone[name]), name
    assert _model_of_hypotheses.cache_info().hits > len(alone) / 2


@pytest.mark.slow
def test_no_two_hypotheses_about_a_term_predict_the_same() -> None:
    own = {name: f"term term: {name}" for name in ("", *of_terms(), *STEP.hypotheses)}
    found = {
        name: torch.cat([gradients(variant, case) for case in CASES])
        for name, variant in own.items()
    }
    for name in of_terms():
        for other in found.keys() - {name}:
            cosine = torch.cosine_similarity(found[name], found[other], dim=0)
            assert cosine < 1 - 1e-6, f"{name} and {other}"


@pytest.mark.parametrize("is_part", [False, True])
def test_the_loss_sees_another_mask_than_the_model_or_the_part_it_calls(*, is_part: bool) -> None:
    seen: list[Tensor] = []

    class Listening(Hybrid):
        def forward(self, ids_BL: Tensor, positions_BL: Tensor, mask_BS: Tensor) -> Tensor:
            seen.append(mask_BS)
            return super().forward(ids_BL, positions_BL, mask_BS)

    mask_BS = torch.tensor([[0, 1, 1]])
    batch = {
        "input_ids": mask_BS,
        "position_ids": mask_BS,
        "labels": mask_BS,
        "attention_mask": torch.ones_like(mask_BS),
        MODEL_MASK: mask_BS,
    }
    called = Listening(CASES[0])
    model = nn.ModuleDict({"policy": called, "reference": Hybrid(CASES[0])}) if is_part else called
    with Calls(model, batch, CASES[0]).changed():
        next_losses(called, batch)
    next_losses(called, batch)
    assert [mask.tolist() for mask in seen] == [[[0, 1, 1]], [[1, 1, 1]]]


@pytest.mark.parametrize("named", [{}, {"attention_mask": torch.ones(2, 3)}])
def test_attention_that_is_called_in_another_way_sees_what_it_saw(named: Any) -> None:
    class Another(nn.Module):
        is_causal = True

        def forward(self, **given: Any) -> Any:
            return given

    def nothing(seen_B1QK: Tensor, _batch: Batch, _window: int | None) -> Tensor:
        return torch.zeros_like(seen_B1QK)

    module, ids_BS = Another(), torch.ones(2, 3, dtype=torch.long)
    with seeing(module, nothing, {"input_ids": ids_BS}):
        assert module(**named) == named
        changed = module(attention_mask=None)["attention_mask"]
    assert (changed < -1).all()
    assert module(attention_mask=None) == {"attention_mask": None}


@pytest.mark.parametrize("is_part", [False, True])
def test_logits_change_once_whether_a_loss_calls_a_model_or_a_part_of_it(*, is_part: bool) -> None:
    def twice(logits_BSV: Tensor, _batch: Batch, _case: Case) -> Tensor:
        return 2 * logits_BSV

    policy, values = Tiny(CASES[0]), nn.Linear(3, 1)
    model = nn.ModuleList([policy, values]) if is_part else policy
    ids_BS, x_BSD = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, 3)
    given = ids_BS, ids_BS, ids_BS.bool()
    plain = policy(*given), values(x_BSD)
    with Calls(model, {}, CASES[0], twice).changed():
        assert torch.equal(policy(*given), 2 * plain[0])
        assert torch.equal(values(x_BSD), plain[1])
    assert torch.equal(policy(*given), plain[0])


def test_what_leaves_no_gradient_is_changed_alone() -> None:
    def twice(logits_BSV: Tensor, _batch: Batch, _case: Case) -> Tensor:
        return 2 * logits_BSV

    policy, teacher = Tiny(CASES[0]), Tiny(CASES[0]).requires_grad_(requires_grad=False)
    model = nn.ModuleList([policy, teacher])
    ids_BS, mask_BS = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
    place_BS = torch.arange(3).expand(2, 3)
    plain, moved = (
        [each(ids_BS, places_BS, mask_BS) for each in model]
        for places_BS in (place_BS, 2 * place_BS)
    )
    batch = {"position_ids": place_BS, MODEL_POSITIONS: 2 * place_BS}
    calls = Calls(model, batch, CASES[0], twice, without_gradient=True)
    with calls.changed():
        assert torch.equal(policy(ids_BS, place_BS, mask_BS), plain[0])
        are_met_before = calls.are_met
        assert torch.equal(teacher(ids_BS, place_BS, mask_BS), 2 * moved[1])
        assert (are_met_before, calls.are_met) == (False, True)
        with torch.no_grad():
            assert torch.equal(policy(ids_BS, place_BS, mask_BS), 2 * moved[0])


def test_attention_that_leaves_no_gradient_sees_otherwise_alone() -> None:
    class Causal(nn.Module):
        is_causal = True

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, *, attention_mask: Any) -> Any:
            return attention_mask

    def nothing(seen_B1QK: Tensor, _batch: Batch, _window: int | None) -> Tensor:
        return torch.zeros_like(seen_B1QK)

    model = nn.ModuleList([Causal(), Causal().requires_grad_(requires_grad=False)])
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    calls = Calls(model, batch, CASES[0], without_gradient=True)
    with calls.changed(), seeing(model, calls.limited(nothing), batch):
        policy, teacher = (module(attention_mask=None) for module in model)
    assert torch.equal(policy[0, 0] == 0, torch.ones(3, 3).tril().bool())
    assert (teacher < -1).all()


def test_an_exchanged_operation_leaves_indices_and_a_tensor_alone_as_they_are() -> None:
    index, x = torch.tensor([7]), torch.tensor([1.0, 2.0])
    for hypothesis in of_operations():
        with computing_with(hypothesis.operations):
            assert index.clamp(0, 3).tolist() == torch.clamp(index, max=3).tolist() == [3]
            assert torch.max(index, index - 1).tolist() == [7]
            assert x.max() == 2
            assert x.min(0).indices == 0
            assert x.clamp(min=1.5).tolist() == [1.5, 2]


def test_hypotheses_have_names_of_anomalies() -> None:
    names = {*STEP.hypotheses, *of_terms()}
    assert {name.partition(": ")[0] for name in names} | {MISWEIGHTED} <= ANOMALIES.keys()
