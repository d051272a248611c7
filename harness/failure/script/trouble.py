"""Why there is no script."""


class CannotStandAlone(ValueError):
    """The candidate's source cannot be put into one file; the message says what is in the way."""
