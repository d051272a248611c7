"""yunchang, imported once the packages that it looks for are there."""

from harness.candidates.published.flash_stand_in import blocks
from harness.candidates.published.yunchang import hopper

__all__ = [
    "EXTRACT_FUNC_DICT",
    "PROCESS_GROUP",
    "AsyncLongContextAttention",
    "AttnType",
    "LongContextAttention",
    "UlyssesAttention",
    "flash_attn_func",
    "set_seq_parallel_pg",
]

blocks.install()
hopper.install()

from flash_attn import flash_attn_func  # noqa: E402
from yunchang import (  # noqa: E402
    EXTRACT_FUNC_DICT,
    AsyncLongContextAttention,
    LongContextAttention,
    UlyssesAttention,
)
from yunchang.globals import PROCESS_GROUP, set_seq_parallel_pg  # noqa: E402
from yunchang.kernels import AttnType  # noqa: E402
