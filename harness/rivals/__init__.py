"""The acceptance rules of published suites, to be scored on the same mutants as our own."""

from harness.rivals.deepspeed import DEEPSPEED
from harness.rivals.megatron import MEGATRON
from harness.rivals.ms_swift import MS_SWIFT
from harness.rivals.pytorch import PYTORCH
from harness.rivals.rule import Accepts, Rival
from harness.rivals.silent import SILENT
from harness.rivals.torchtitan import TORCHTITAN
from harness.rivals.transformer_engine import TRANSFORMER_ENGINE
from harness.rivals.transformers import TRANSFORMERS
from harness.rivals.veomni import VEOMNI
from harness.rivals.verl import VERL
from harness.rivals.yunchang import YUNCHANG

__all__ = ["RIVALS", "Accepts", "Rival"]

RIVALS: tuple[Rival, ...] = (
    *VERL,
    *DEEPSPEED,
    *TRANSFORMERS,
    *MEGATRON,
    *VEOMNI,
    *MS_SWIFT,
    *YUNCHANG,
    *TORCHTITAN,
    *TRANSFORMER_ENGINE,
    *PYTORCH,
    *SILENT,
)
