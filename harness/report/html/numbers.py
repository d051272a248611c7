"""Numbers as they stand on pages."""


def in_sentence(number: float | None) -> str:
    """Return a few digits, or words for a missing number."""
    if number is None:
        return "no number"
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def in_cell(number: float | None) -> str:
    """Return what fits into a cell of a map; empty for a missing number."""
    if number is None:
        return ""
    if isinstance(number, int):
        return str(number)
    return f"{number:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("0.", ".")


def share(used: float) -> str:
    """Return an error as a share of its budget; empty if the budget allows no error."""
    if used >= 1e100:
        return ""
    if used <= 1:
        return f"{used:.2g} of its budget"
    return f"{used:.2g} budgets"
