"""Garbage is not looked for while something is imported, and is as before afterwards."""

import gc

import pytest

from harness.importing import without_a_search_for_garbage


@pytest.mark.parametrize("searched", [True, False])
def test_garbage_is_looked_for_afterwards_as_before(searched: bool) -> None:
    before = gc.isenabled()
    (gc.enable if searched else gc.disable)()
    try:
        with pytest.raises(ImportError), without_a_search_for_garbage():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is searched
    finally:
        (gc.enable if before else gc.disable)()
