"""Names a failure by one term of a loss that is wrong alone: a KL, an entropy, a balance.

A term is a metric of the recipe that has gradients. The step may count too much or too little of
it, or compute it as a hypothesis says. What else the loss has is taken to be right. As nothing
says what a term is multiplied by, factors are fitted: one for plain training's term, and one for
the hypothesis. Two factors fit a case of two targets whatever is wrong, so a hypothesis has to
take away as much of plain training's term in each case.

If nothing predicts the gradients, a term still is what is wrong if the loss is off by as many
times what the step reports of it is off, in all cases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isclose

from harness.compare import Look
from harness.compare.term_fit import fit_terms, losses_by_metric, with_terms
from harness.judge.wrong_case import Predict, WrongCase, fit, fits_loss
from harness.recipes.hypotheses.terms import of_terms
from harness.recipes.recipe import TERM
from harness.trace import METRIC, Trace

# The name of a term that is right but for how much of it counts.
MISWEIGHTED = "term-misweighted"
# The name of a term that comes out otherwise, and not as any hypothesis says.
WRONG_ITSELF = "term-wrong"
_SIDES = ("little", "much")
# By how much the factors of two cases may differ, and one from a number of two digits.
ALIKE, ROUND = 1e-3, 1e-5
# So little of a term is no mistake in its weight, unless all cases have as much of it.
LITTLE = 1e-6


@dataclass(slots=True)
class Guess:
    """One term, and what is done wrong with it; nothing if only too much or too little counts."""

    term: str
    hypothesis: str
    # How much of it each wrong case has too much; without those in which the hypothesis changes
    # no more than the weight of the term.
    surplus: list[float] = field(default_factory=list)

    def is_plausible(self) -> bool:
        """Return whether one mistake explains what was fitted to each case.

        Where a hypothesis holds, the loss lacks the term as it should be: in all cases as much of
        it. If that is of one case alone, it has to be a coefficient that somebody would write.
        """
        if not self.surplus:
            return False
        first = self.surplus[0]
        are_alike = all(isclose(x, first, rel_tol=ALIKE) for x in self.surplus)
        if self.hypothesis:
            is_written = isclose(first, float(f"{first:.2g}"), rel_tol=ROUND)
            return are_alike and (len(self.surplus) > 1 or is_written)
        return are_alike or max(map(abs, self.surplus)) > LITTLE

    def look(self, cases: int) -> Look:
        anomaly, _, how = self.hypothesis.partition(": ")
        if not how:
            amounts = {f"{abs(x):.4g} times {self.term} too {_SIDES[x > 0]}" for x in self.surplus}
            anomaly, how = MISWEIGHTED, f"the loss has {' or '.join(sorted(amounts))}"
        else:
            how = f"in {self.term} alone: {how}"
        why = f"{how}; this predicts all gradients of {cases} cases that go wrong"
        return Look(anomaly, why, how=how if self.hypothesis else f"the weight of {self.term}")


def name_by_term(
    wrongs: Sequence[WrongCase], names: Sequence[str], predict: Predict
) -> Look | None:
    """Return the first guess that fits all wrong cases; None if there is none."""
    # Where all gradients are those of plain training but for one factor, the whole loss would fit.
    wrongs = [wrong for wrong in wrongs if not wrong.is_scaled]
    if len(wrongs) < 2:
        return None
    # Plain training, and each term of its loss alone, are computed once for all guesses.
    predict_once = cache(predict)
    plain = predict_once(wrongs[0].case, "plain") or Trace()
    for guess in _guesses(plain, ("", *names, *of_terms())):
        holds = all(_holds(guess, wrong, predict, predict_once) for wrong in wrongs)
        if holds and guess.is_plausible():
            return guess.look(len(wrongs))
    looks = (_named_by_reports(metric, wrongs, predict_once) for metric in _metrics(plain))
    return next(filter(None, looks), None)


def _guesses(plain: Trace, hypotheses: Sequence[str]) -> Iterator[Guess]:
    """Yield the guesses about each metric, those about weights first."""
    for hypothesis in hypotheses:
        for metric in _metrics(plain):
            yield Guess(metric, hypothesis)


def _metrics(plain: Trace) -> list[str]:
    return [key.removeprefix(METRIC) for key in plain if key.startswith(METRIC)]


def _holds(guess: Guess, wrong: WrongCase, predict: Predict, predict_once: Predict) -> bool:
    """Return whether a guess predicts what the step gave, and note how much of it."""
    plain = predict_once(wrong.case, "plain")
    term = predict_once(wrong.case, f"{TERM}{guess.term}: ")
    if plain is None or term is None:
        return False
    added, factors = [term], None
    if guess.hypothesis:
        changed = predict(wrong.case, f"{TERM}{guess.term}: {guess.hypothesis}")
        if changed is None:
            return False
        factors = fit_terms(plain, wrong.outcome.trace, [term, changed])
        if factors is not None:
            added.append(changed)
    if factors is None:
        # There is no hypothesis, or this case has too few tokens to tell it from the term.
        factors = fit_terms(plain, wrong.outcome.trace, added)
    if factors is None or fit(wrong, with_terms(plain, added, factors)) != "":
        return False
    if len(added) > 1 or not guess.hypothesis:
        guess.surplus.append(factors[0])
    return True


def _named_by_reports(
    metric: str, wrongs: Sequence[WrongCase], predict_once: Predict
) -> Look | None:
    """Return the name of a term if what is wrong with it is all that is wrong with the loss."""
    pairs = [
        (predict_once(wrong.case, "plain") or Trace(), wrong.outcome.trace) for wrong in wrongs
    ]
    losses = losses_by_metric(f"{METRIC}{metric}", pairs)
    if losses is None or not all(map(fits_loss, wrongs, losses)):
        return None
    how = f"{metric} comes out otherwise, and all else in the loss is right"
    why = f"{how}; this predicts the losses of {len(wrongs)} cases that go wrong"
    return Look(WRONG_ITSELF, why, how=how)
