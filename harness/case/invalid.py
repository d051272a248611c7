"""The exception for a case that breaks a rule."""

from harness.untrusted import BadInput


class InvalidCase(BadInput):
    """A case that must not reach a rank; the message names field, value, rule and remedy."""

    @classmethod
    def because(cls, field: str, value: object, rule: str) -> "InvalidCase":
        """Return the error `field=value: rule`, with a long value cut short."""
        text = str(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        return cls(f"{field}={shown}: {rule}")
