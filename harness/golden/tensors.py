"""The tensors of a golden as a safetensors file, whose header says what made them."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from harness.against import PLAIN, is_of_recipe
from harness.golden.damage import BadGolden
from harness.golden.vector import read_record
from harness.trace import Entry, Trace, is_kept

FORMAT = "golden/1"
# The metadata has a single entry, because safetensors writes several in any order.
ENTRY = "golden"
# The token numbers of a tensor's rows are stored as another tensor, with this ending.
TOKENS = ".tokens"
# The file begins with the length of its header, in so many bytes.
LENGTH = 8

DTYPES = ("float64", "float32")


# Fields of `Stored.made` that goldens of our own plain training do not have. A recipe has a loss,
# and no losses of tokens.
CANDIDATE, AGAINST = "candidate", "against"


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a file of tensors."""

    name: str
    # The line of the case that was run.
    case: str
    trace: Trace
    # The versions, platform and device that computed them; also the candidate, if it was one.
    made: dict[str, str]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata of the file."""

    format: str
    name: str
    case: str
    keys: list[str]
    made: dict[str, str]


def tensor_bytes(stored: Stored) -> bytes:
    """Return the content of the file; equal traces give equal bytes."""
    arrays = {}
    for key in stored.trace:
        entry = stored.trace[key]
        arrays[key] = np.array(entry.values, order="C")
        if entry.tokens is not None:
            arrays[key + TOKENS] = np.array(entry.tokens, order="C")
    header = _Header(FORMAT, stored.name, stored.case, list(stored.trace), stored.made)
    return safetensors.numpy.save(arrays, {ENTRY: json.dumps(msgspec.structs.asdict(header))})


def parse_tensors(name: str, data: bytes) -> Stored:
    """Return the tensors in a file of this name; raise `BadGolden` if it is damaged."""
    header = _read_header(data)
    if header.name != name:
        raise BadGolden(f"name={header.name!r}: must be the file's name")
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise BadGolden(f"is not a whole safetensors file: {_on_one_line(error)}") from None
    trace = _read_trace(header.keys, arrays)
    lacks_nll = "nll" not in trace or trace["nll"].tokens is None
    if "loss" not in trace or (lacks_nll and not is_of_recipe(header.made.get(AGAINST, PLAIN))):
        raise BadGolden("keys: nll with its tokens, and loss, must be among them")
    return Stored(name, header.case, trace, header.made)


def _read_trace(keys: list[str], arrays: dict[str, Any]) -> Trace:
    """Return the trace of these keys; raise `BadGolden` unless the arrays are exactly theirs."""
    trace = Trace()
    for key in keys:
        trace.put(key, _read_entry(key, arrays.get(key), arrays.get(key + TOKENS)))
    with_tokens = [key + TOKENS for key in keys if trace[key].tokens is not None]
    unknown = sorted(arrays.keys() - {*keys, *with_tokens})
    if unknown:
        raise BadGolden(f"{unknown[0]}: a tensor that its header does not name")
    return trace


def _read_entry(key: str, values: Any, tokens: Any) -> Entry:
    """Return the entry of a key; raise `BadGolden` if its arrays are missing or wrong."""
    if not is_kept(key):
        raise BadGolden(f"keys={key!r}: is neither a loss, a metric nor a gradient")
    if values is None:
        raise BadGolden(f"{key}: the tensor is missing")
    if values.dtype.name not in DTYPES:
        raise BadGolden(f"{key}: {values.dtype} is not one of {', '.join(DTYPES)}")
    if key == "loss" and values.shape != ():
        raise BadGolden(f"{key}: must be one number, not of shape {values.shape}")
    if tokens is not None and (tokens.dtype != np.int64 or tokens.shape != values.shape[:1]):
        raise BadGolden(f"{key}{TOKENS}: must be one whole number for each row of {key}")
    if tokens is not None and (tokens[1:] <= tokens[:-1]).any():
        raise BadGolden(f"{key}{TOKENS}: must be ascending")
    return Entry(values, tokens)


def _read_header(data: bytes) -> _Header:
    """Return the metadata of a file, which safetensors does not give for bytes."""
    size = int.from_bytes(data[:LENGTH], "little")
    if len(data) < LENGTH or size > len(data) - LENGTH:
        raise BadGolden(f"is cut off after {len(data)} bytes")
    try:
        metadata = json.loads(data[LENGTH : LENGTH + size])["__metadata__"][ENTRY].encode()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise BadGolden("has no header of a golden") from None
    return read_record(metadata, FORMAT, _Header)


def _on_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
