"""Objects that take the place of what a library expects and a CPU rank lacks."""

from typing import Any


class Replacing:
    """A module or another object with some attributes replaced."""

    def __init__(self, original: Any, **attributes: Any) -> None:
        vars(self).update(attributes, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class Idle:
    """An optimizer, schedule or callback that accepts every call and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return (lambda: [0.0]) if name == "get_last_lr" else (lambda *_, **__: None)
