"""Make transformers 4.51 to 5.23 report that flash-attn 2 is installed and can run."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from packaging.version import parse

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = (
    *("flash_attn_func", "flash_attn_varlen_func"),
    *("index_first_axis", "pad_input", "unpad_input"),
)


def pretend_installed(release: str) -> None:
    """Let transformers report that this release of flash-attn is installed and can run."""
    answers: dict[str, Callable[..., bool]] = {
        "is_flash_attn_2_available": lambda *_, **__: True,
        "is_flash_attn_greater_or_equal_2_10": lambda *_, **__: True,
        "is_flash_attn_greater_or_equal": lambda asked: parse(release) >= parse(asked),
    }
    helpers = importlib.import_module("transformers.modeling_flash_attention_utils")
    modeling = importlib.import_module("transformers.modeling_utils")
    importlib.import_module("transformers.integrations.flash_attention")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "transformers":
            # Not by getattr, which would make a lazy module import the name.
            vars(module).update({key: answers[key] for key in answers if key in vars(module)})
    if not hasattr(helpers, "_lazy_imports"):
        # Older releases import the functions when they are themselves imported.
        for source in ("flash_attn", "flash_attn.bert_padding"):
            offered = vars(sys.modules[source])
            vars(helpers).update({name: offered[name] for name in NAMES if name in offered})
        vars(helpers)["_flash_supports_window_size"] = True
    for name in ("_flash_attn_2_can_dispatch", "_flash_attn_can_dispatch"):
        if hasattr(modeling.PreTrainedModel, name):
            _permit(modeling.PreTrainedModel, name)


def _permit(model: Any, name: str) -> None:
    """Let models dispatch to flash-attn 2 without a GPU; keep other versions as released."""
    original: Callable[..., bool] = getattr(model, name)

    def can_dispatch(self: Any, *args: Any, **kwargs: Any) -> bool:
        # Newer releases have one method for all versions.
        asked = kwargs.get("flash_attn_version", args[0] if args else 2)
        if name == "_flash_attn_can_dispatch" and asked != 2:
            return original(self, *args, **kwargs)
        return True

    setattr(model, name, can_dispatch)
