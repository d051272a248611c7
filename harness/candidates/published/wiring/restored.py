"""Put transformers back after a library has registered its own attention for a whole process."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from transformers import masking_utils, modeling_flash_attention_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


@contextmanager
def restored() -> Iterator[None]:
    """At the end, undo what was registered or replaced in transformers meanwhile."""
    registries = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, ALL_ATTENTION_FUNCTIONS
    changeable = [
        *(vars(module) for module in (masking_utils, modeling_flash_attention_utils)),
        *(vars(registry)["_local_mapping"] for registry in registries),
        *(vars(type(registry))["_global_mapping"] for registry in registries),
    ]
    with ExitStack() as stack:
        for names in changeable:
            stack.enter_context(patch.dict(names))
        yield
