"""The acceptance rules of published suites, to be scored on the same mutants as our own."""

from properties.rivals.deepspeed import DEEPSPEED
from properties.rivals.megatron import MEGATRON
from properties.rivals.ms_swift import MS_SWIFT
from properties.rivals.pytorch import PYTORCH
from properties.rivals.rule import Accepts, Rival
from properties.rivals.silent import SILENT
from properties.rivals.torchtitan import TORCHTITAN
from properties.rivals.transformer_engine import TRANSFORMER_ENGINE
from properties.rivals.transformers import TRANSFORMERS
from properties.rivals.veomni import VEOMNI
from properties.rivals.verl import VERL
from properties.rivals.yunchang import YUNCHANG

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
