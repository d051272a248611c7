"""Numbers as a reader has them."""


def brief(number: float | None) -> str:
    """A few digits; a word where it is no number."""
    if number is None:
        return "no number"
    return str(number) if isinstance(number, int) else f"{number:.6g}"


def short(number: float | None) -> str:
    """What fits in a cell."""
    if number is None:
        return ""
    if isinstance(number, int):
        return str(number)
    return f"{number:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("0.", ".")


def share(used: float) -> str:
    """An error as a share of what was allowed; nothing where no error is."""
    if used >= 1e100:
        return ""
    if used <= 1:
        return f"{used:.2g} of its budget"
    return f"{used:.2g} budgets"
