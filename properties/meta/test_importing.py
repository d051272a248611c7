"""The garbage collector is off during an import, and as before afterwards."""

import gc

import pytest

from harness.importing import without_a_search_for_garbage


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_restored_after_an_import_that_fails(is_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(ImportError), without_a_search_for_garbage():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if before else gc.disable)()
