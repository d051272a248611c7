"""The one error for bad input."""

from harness.untrusted import BadInput


class InvalidCase(BadInput):
    """A case that no rank may ever see: the message names field, value, rule and remedy."""

    @classmethod
    def because(cls, field: str, value: object, rule: str) -> "InvalidCase":
        """`field=value: rule`, with a value too long to read cut short."""
        text = str(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        return cls(f"{field}={shown}: {rule}")
