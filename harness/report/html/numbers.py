"""Numbers as a reader has them."""


def brief(number: float | None) -> str:
    """A few digits; a word where it is no number."""
    if number is None:
        return "no number"
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def share(used: float) -> str:
    """An error as a share of what was allowed."""
    if used >= 1e100:
        return "must be exact"
    if used <= 1:
        return f"{used:.2g} of its budget"
    return f"{used:.2g} budgets"
