"""Make the table of what packages train beyond supervised losses, from recipes and results."""

from functools import partial
from inspect import getdoc, unwrap
from typing import Any

from harness.candidates.published.library import libraries
from harness.conformance.document import Results
from harness.conformance.page import total
from harness.recipes.families import families_of
from harness.recipes.recipe import Recipe
from harness.verdict import PASSED

HEADS = (
    *("candidate", "trains", "models", "settings that are drawn"),
    *("cases", "passed", "known", "diverged", "fault"),
)


def by_loss(results: Results) -> list[tuple[str, ...]]:
    """Return the table as rows, heads first: a line for each candidate that has a recipe."""
    recipes = {
        f"{library.name}.{key}": recipe
        for library in libraries().values()
        for key, recipe in library.recipes.items()
    }
    records = results["candidates"]
    rows = [_row(name, recipe, records.get(name)) for name, recipe in recipes.items()]
    return [HEADS, *rows]


def _row(name: str, recipe: Recipe, record: dict[str, Any] | None) -> tuple[str, ...]:
    loss: Any = unwrap(recipe.loss)
    sentence = getdoc(loss.func if isinstance(loss, partial) else loss) or ""
    drawn = [f"{key} ({len(of)})" for key, of in recipe.settings.items() if key != "family"]
    numbers = ["not run"] + [""] * 4
    if record:
        counts = total(record, "verdicts")
        passed = sum(counts[verdict] for verdict in PASSED)
        others = [counts[verdict] for verdict in ("KNOWN", "DIVERGED", "FAULT")]
        numbers = [*map(str, (passed + sum(others), passed, *others))]
    return (
        f"`{name}`",
        sentence.partition("\n")[0].rstrip("."),
        ", ".join(families_of(recipe)),
        ", ".join(drawn) or "none",
        *numbers,
    )
