"""All that can be wrong with a step of a recipe, as far as its plain training can predict it."""

from collections.abc import Mapping

from harness.recipes.columns import Column
from harness.recipes.hypotheses.columns import in_place_of, is_of_rows, of_column, of_order
from harness.recipes.hypotheses.constants import of_constants
from harness.recipes.hypotheses.logits import of_logits
from harness.recipes.hypotheses.operations import of_operations
from harness.recipes.hypotheses.parameters import of_parameters
from harness.recipes.hypotheses.sums import of_counts, of_rows, of_statistics
from harness.recipes.hypotheses.terms import of_masks
from harness.recipes.hypotheses.tokens import of_attention, of_labels, of_positions
from harness.recipes.hypotheses.visibility import of_visibility
from harness.recipes.hypothesis import Hypothesis


def hypotheses(columns: Mapping[str, Column]) -> dict[str, Hypothesis]:
    """Return all hypotheses about a recipe with these columns, by name.

    The usual ones come first, and those that a model or a loss may not take come last.
    """
    found = [*of_labels(), *of_positions(), *of_visibility(), *of_masks(), *of_counts()]
    found += [*of_attention(), *of_order()]
    for name, column in columns.items():
        found += of_column(name, column)
        alike = [other for other in columns if is_of_rows(columns[other]) is is_of_rows(column)]
        found += [in_place_of(name, other) for other in alike if other != name]
    found += [*of_parameters(), *of_logits(), *of_constants(), *of_statistics()]
    found += [*of_operations(), *of_rows()]
    return {hypothesis.name: hypothesis for hypothesis in found}
