"""Plain training as its author would write it for one device and a padded batch."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from harness.case import Case
from harness.case.settings import Settings, chosen, named_by, require_valid
from harness.recipes.batch import IGNORED, Batch, as_data, describing, rows_of, table
from harness.recipes.columns import Column, Computed, Drawn
from harness.recipes.exact import as_asked, exact, exact_again
from harness.recipes.hypotheses import hypotheses
from harness.recipes.hypotheses.terms import of_terms
from harness.recipes.hypothesis import Hypothesis, as_it_is
from harness.recipes.inside import PADDING, embedded, emitted, numbers, with_distinct_ids
from harness.recipes.result import Metrics, emit_result, is_traced, parted, plain_name
from harness.recipes.weights import fill
from harness.reference.weights import TORCH_DTYPES
from harness.trace import COMPUTED, DRAWN, FROZEN

if TYPE_CHECKING:
    from harness.rank import Emit, Rank

# Precedes the name of a term in the variant that computes that term of the loss alone.
TERM = "term "
UNCHANGED = Hypothesis("", "")
# model(case), and loss(model, batch) with metrics beside it if there are any. A model is given the
# settings that it names, the loss all others by name.
Build = Callable[..., nn.Module]
Loss = Callable[..., "Tensor | tuple[Tensor, Metrics]"]


@dataclass(frozen=True, eq=False)
class Recipe:
    """A model, its loss on all rows of the global batch, and what the loss takes besides.

    That is the columns that it reads, and settings: by name, the values to try, the default first.
    Those that the model's builder has as parameters are given to it, all others to the loss.

    The loss on the global batch is the contract: a step on any number of ranks, replicas and
    micro-batches must have the same loss and the same gradients.
    """

    model: Build
    loss: Loss
    columns: Mapping[str, Column] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_valid(self.of_model, self.model)
        require_valid(self.of_loss, self.loss)

    @cached_property
    def of_model(self) -> Settings:
        """The settings that the model's builder takes."""
        return named_by(partial(self.model, None), self.settings)

    @cached_property
    def of_loss(self) -> Settings:
        """All other settings, which loss and step take."""
        return {n: values for n, values in self.settings.items() if n not in self.of_model}

    def refuses(self, case: Case) -> str | None:
        """Return why no step of this recipe runs a case, or None."""
        if case.columns != "drawn" and not any(
            isinstance(column, Drawn) for column in self.columns.values()
        ):
            return f"columns={case.columns}: its recipe draws no column"
        return None

    def loss_of(self, case: Case) -> Loss:
        """Return the loss with the settings of a case."""
        return partial(self.loss, **chosen(self.of_loss, case))

    @as_asked()
    def build(
        self,
        case: Case,
        device: torch.device,
        dtype: torch.dtype,
        *,
        nudge: float = 0.0,
        direction: str = "",
    ) -> nn.Module:
        """Build the model with the case's weights, held in `dtype`."""
        model = self.construct(case, dtype)
        constructed = _vectors(model)
        # In fp64 a constructor computes tables exactly, but draws other numbers for vectors.
        if dtype == torch.float64 and not all(map(_is_of_zeros_or_ones, constructed.values())):
            constructed = _constructed_vectors(self, case)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        fill(model, case, constructed, nudge=nudge, direction=direction)
        if dtype == torch.float64:
            exact_again(model)
        return model.to(device).train()

    def construct(self, case: Case, dtype: torch.dtype) -> nn.Module:
        """Call the model's constructor, which computes exactly if `dtype` is fp64."""
        with torch.random.fork_rng(devices=[]), computing_in(dtype):
            torch.manual_seed(case.seed)
            return self.model(case, **chosen(self.of_model, case))

    @as_asked()
    def batch(
        self,
        case: Case,
        rows: list[int],
        device: torch.device,
        dtype: torch.dtype,
        *,
        wider: int = 0,
    ) -> Batch:
        """Make a padded batch of these rows, with all columns."""
        batch = table(case, rows, self.columns, dtype, wider=wider)
        width = batch["input_ids"].shape[1]
        for name, column in self.columns.items():
            if isinstance(column, Computed):
                parts = [
                    _moved(part, case, row, width) for row, part in self._made(case, name, rows)
                ]
                batch[name] = as_data(torch.stack(parts), dtype)
        return {name: tensor.to(device) for name, tensor in batch.items()}

    def run_plain(
        self, case: Case, rank: "Rank", emit: "Emit", variant: str, *, exactly: bool
    ) -> None:
        """Train with all rows on this rank, as usual, in a variant, or as a hypothesis says.

        `term NAME: HYPOTHESIS` takes a metric for the loss; without a hypothesis, as usual.
        Nothing is emitted of a hypothesis that the recipe does not take.
        """
        dtype = torch.float64 if exactly else TORCH_DTYPES[case.dtype]
        rows = list(range(len(case.rows)))
        if variant == "reversed":
            rows.reverse()
        if variant in self.hypotheses:
            self._try_hypothesis(self.hypotheses[variant], case, rank.device, emit)
            return
        if variant.startswith(TERM):
            term, _, name = variant.removeprefix(TERM).partition(": ")
            hypothesis = (self.hypotheses | of_terms())[name] if name else UNCHANGED
            self._try_hypothesis(hypothesis, case, rank.device, emit, term)
            return
        wider = 3 if variant == "wider" else 0
        layout: list[Tensor] = []
        if is_traced(emit):
            other = with_distinct_ids(case)
            model = self.build(other, rank.device, dtype)
            batch = self.batch(other, rows, rank.device, dtype, wider=wider)
            with computing_in(dtype), embedded(model) as calls, describing(batch):
                self.loss_of(case)(model, batch)
            layout = numbers(other, calls)
        model = self.build(case, rank.device, dtype)
        batch = self.batch(case, rows, rank.device, dtype, wider=wider)
        self._emit_columns(case, batch, emit)
        with computing_in(dtype), emitted(model, layout, emit), describing(batch):
            result = self.loss_of(case)(model, batch)
            parted(result)[0].backward()
        emit_result(model, result, emit)
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                emit(f"{FROZEN}{plain_name(name)}", torch.zeros(()))

    def _emit_columns(self, case: Case, batch: Batch, emit: "Emit") -> None:
        """Emit each column with one number for each row, token or target, for a reader."""
        starts_B = torch.tensor(case.offsets, device=batch["row"].device)[batch["row"]]
        tokens_BS = torch.where(
            batch["attention_mask"].bool(), starts_B[:, None] + batch["position_ids"], PADDING
        )
        for name, column in self.columns.items():
            values, is_drawn = batch[name], isinstance(column, Drawn)
            tokens = starts_B if values.ndim == 1 else tokens_BS
            if isinstance(column, Drawn) and column.by == "target":
                tokens = tokens_BS.masked_fill(batch["labels"] == IGNORED, PADDING)
            if values.ndim < 3:
                key = f"{DRAWN if is_drawn else COMPUTED}{name}"
                emit(key, values.flatten(), tokens.flatten())

    @cached_property
    def hypotheses(self) -> dict[str, Hypothesis]:
        """What can be wrong with a step of this recipe, by name."""
        return hypotheses(self.columns)

    def _try_hypothesis(
        self,
        hypothesis: Hypothesis,
        case: Case,
        device: torch.device,
        emit: "Emit",
        term: str = "",
    ) -> None:
        try:
            model, loss = self._train_wrongly(hypothesis, case, device, term)
        except torch.AcceleratorError:
            # The device is of no use after it.
            raise
        except Exception:  # noqa: BLE001 - a loss may refuse a changed batch in any way.
            return
        emit_result(model, loss, emit)

    def _train_wrongly(
        self, hypothesis: Hypothesis, case: Case, device: torch.device, term: str
    ) -> tuple[nn.Module, Tensor]:
        dtype = torch.float64
        if hypothesis.model is as_it_is:
            model = _model_of_hypotheses(self, hypothesis.case(case), device)
            model.zero_grad()
        else:
            model = self.build(hypothesis.case(case), device, dtype)
            hypothesis.model(model)
        micro_batches = [
            self.batch(case, rows, device, dtype)
            for replica in range(case.dp)
            for rows in rows_of(case, replica)
        ]
        total = torch.zeros((), dtype=dtype, device=device)
        with computing_in(dtype):
            for factor, part in hypothesis.of(micro_batches, case):
                with hypothesis.holding(model, part, case):
                    loss, metrics = parted(self.loss_of(case)(model, part))
                share = factor * (metrics[term] if term else loss)
                # A metric for the log alone has no gradient.
                if share.requires_grad:
                    share.backward()
                total += share.detach()
        return model, total

    def _made(self, case: Case, name: str, rows: list[int]) -> list[tuple[int, Tensor]]:
        made = _computed(self, case)[name]
        return [(row, made[row]) for row in rows]


def _vectors(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.data for name, p in model.named_parameters() if p.ndim < 2}


def _is_of_zeros_or_ones(vector: Tensor) -> bool:
    """Return whether a constructor set a vector to a plain value, so that it drew nothing."""
    return bool((vector == 0).all() or (vector == 1).all())


# Cached because step, plain training, columns and hypotheses build the model of the same case.
@lru_cache(maxsize=16)
def _constructed_vectors(recipe: Recipe, case: Case) -> dict[str, Tensor]:
    """Return the vectors of a model as its constructor draws them in fp32."""
    return _vectors(recipe.construct(case, torch.float32))


# Most hypotheses leave the model as it is, and building it takes longer than training on a row.
# Each is tried on a few cases, one after the other.
@lru_cache(maxsize=4)
def _model_of_hypotheses(recipe: Recipe, case: Case, device: torch.device) -> nn.Module:
    return recipe.build(case, device, torch.float64)


@lru_cache(maxsize=16)
def _computed(recipe: Recipe, case: Case) -> dict[str, list[Tensor]]:
    """Return each computed column as one tensor per row, without padding, in fp64."""
    rows, cpu = list(range(len(case.rows))), torch.device("cpu")
    batch = table(case, rows, recipe.columns, torch.float64)
    made: dict[str, list[Tensor]] = {}
    before: list[Column] = []
    for name, column in recipe.columns.items():
        if isinstance(column, Computed):
            # An old policy and a reference that are declared alike are two models all the same.
            direction = name if column in before else ""
            before.append(column)
            model = recipe.build(case, cpu, torch.float64, nudge=column.nudge, direction=direction)
            with torch.no_grad(), exact():
                values = column.compute(model, batch)
            made[name] = [_of_row(values, batch, row) for row in rows]
    return made


def _of_row(values: Tensor, batch: Batch, row: int) -> Tensor:
    return values[row][batch["attention_mask"][row].bool()] if values.ndim > 1 else values[row]


def _moved(values: Tensor, case: Case, row: int, width: int) -> Tensor:
    """Return a row of a computed column with the padding of another batch."""
    if not values.ndim:
        return values
    padded = values.new_zeros(width, *values.shape[1:])
    start = width - len(values) if case.rows[row].side == "left" else 0
    padded[start : start + len(values)] = values
    return padded


def computing_in(dtype: torch.dtype) -> Any:
    """Compute exactly if the dtype is fp64; change nothing otherwise."""
    return exact() if dtype == torch.float64 else nullcontext()
