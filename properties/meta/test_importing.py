"""Garbage is not looked for while something is imported, and is as before afterwards."""

import gc
import sys

import pytest

from harness.importing import without_a_search_for_garbage


@pytest.mark.parametrize("searched", [True, False])
@pytest.mark.parametrize("imported", [True, False])
def test_what_was_imported_is_kept_and_garbage_is_looked_for_as_before(
    searched: bool, imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gc.isenabled()
    frozen = list[bool]()
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    (gc.enable if searched else gc.disable)()
    try:
        with without_a_search_for_garbage():
            assert not gc.isenabled()
            if imported:
                monkeypatch.setitem(sys.modules, "imported_for_a_test", sys)
        assert gc.isenabled() is searched
    finally:
        (gc.enable if before else gc.disable)()
    # Otherwise ranks, which load a candidate for each case, would keep all garbage.
    assert bool(frozen) is imported
