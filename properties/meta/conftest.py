"""What tests of the ranks share."""

import pytest


@pytest.fixture
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks start as they do on a GPU, each importing everything itself."""
    monkeypatch.setattr("harness.supervision.host.should_fork", lambda _: False)


@pytest.fixture
def no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        pytest.fail("a rank was started")

    monkeypatch.setattr("harness.ranks.launch.Launch.__init__", started)
