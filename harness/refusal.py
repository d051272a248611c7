"""The base of every error that is about what the user gave."""


class BadInput(ValueError):
    """It cannot be used: the message names field, value and remedy, and is all that is shown."""
