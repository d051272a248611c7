"""What tests of the ranks share."""

from collections.abc import Callable

import pytest

from properties.helpers import alive


@pytest.fixture(scope="session")
def address_of() -> Callable[[int], str]:
    return alive.address_of


@pytest.fixture(scope="session")
def left_behind() -> Callable[[str], list[str]]:
    return alive.left_behind


@pytest.fixture
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks start as they do on a GPU, each importing everything itself."""
    monkeypatch.setattr("harness.ranks.host.forks", lambda _: False)


@pytest.fixture
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        pytest.fail("a rank was started")

    monkeypatch.setattr("harness.ranks.launch.Launch.__init__", started)
