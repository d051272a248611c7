"""A case as one line of text, and back.

    case/1 rows=3:111,4:1011:left ids=[1,2,3],[4,5,6,7] heads=4/2 layers=1 vocab=32 sp=2 dp=1 ...

A row is `length:mask` or `length:mask:left`. A long run of equal mask bits is written
`1{8000}`. Fields may stand in any order; those left out have the defaults of `Case`.
"""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from harness.case.case import MAX_TOKENS, Case
from harness.case.invalid import InvalidCase
from harness.case.row import Row

FORMAT = 1
# Bits up to this run length are easier to read spelled out.
LONGEST_PLAIN_RUN = 11
# Longer than any line this module writes for MAX_TOKENS tokens with stated ids would need.
MAX_LINE = 1 << 28

_RUNS = re.compile(r"([01])\{([1-9][0-9]{0,8})\}|([01])")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,19}")
_FRACTION = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?(e[-+]?[0-9]{1,3})?")


def line(case: Case) -> str:
    """The canonical line: what decides the size of the problem always, the rest if unusual."""
    fields = [f"rows={','.join(map(_row_text, case.rows))}"]
    if case.ids is not None:
        fields.append("ids=" + ",".join(json.dumps(i, separators=(",", ":")) for i in case.ids))
    fields.append(f"heads={case.heads}/{case.kv_heads}")
    fields += [f"{n}={getattr(case, a)}" for n, a in _ALWAYS.items()]
    fields += [
        f"{n}={_scalar_text(getattr(case, a))}"
        for n, a in _UNLESS_DEFAULT.items()
        if getattr(case, a) != _DEFAULTS[a]
    ]
    fields += [f"dtype={case.dtype}", f"seed={case.seed}"]
    return f"case/{FORMAT} " + " ".join(fields)


def parse(text: str) -> Case:
    """The case that a line describes; `InvalidCase` for anything else."""
    if not isinstance(text, str):
        raise InvalidCase.because("case", repr(text), "use the line that `str(case)` gives")
    if len(text) > MAX_LINE:
        raise InvalidCase.because("case", f"{len(text)} characters", f"at most {MAX_LINE}")
    head, *words = text.split() or [""]
    if head != f"case/{FORMAT}":
        raise InvalidCase.because(
            "case", repr(head), f"a case line starts with case/{FORMAT} in this version"
        )
    fields: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _READERS:
            known = ", ".join(_READERS)
            raise InvalidCase.because(name or "case", repr(word), f"unknown field; use {known}")
        if not equals:
            raise InvalidCase.because(name, "nothing", f"write {name}=VALUE")
        if any(field in fields for field in _FIELDS.get(name, (name,))):
            raise InvalidCase.because(name, value, "stated twice; keep one")
        fields.update(_READERS[name](name, value))
    if "rows" not in fields:
        raise InvalidCase.because("rows", "nothing", "a case needs rows, for example rows=3:111")
    return Case(**fields)


def _row_text(row: Row) -> str:
    runs = ((bit, len(list(group))) for bit, group in itertools.groupby(row.mask))
    mask = "".join(b * n if n <= LONGEST_PLAIN_RUN else f"{b}{{{n}}}" for b, n in runs)
    return f"{len(row)}:{mask}" + (":left" if row.side == "left" else "")


def _scalar_text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def read_mask(field: str, text: str) -> str:
    """The bits that a mask text stands for."""
    bits: list[str] = []
    total = at = 0
    while at < len(text):
        found = _RUNS.match(text, at)
        if not found:
            raise InvalidCase.because(field, text, "a mask is 0s and 1s, or runs such as 1{800}")
        bit, run, plain = found.groups()
        count = int(run) if run else 1
        total += count
        if total > MAX_TOKENS:
            raise InvalidCase.because(field, text, f"a batch has at most {MAX_TOKENS} tokens")
        bits.append(bit * count if run else plain)
        at = found.end()
    return "".join(bits)


def _read_rows(name: str, value: str) -> dict[str, Any]:
    rows = []
    for r, text in enumerate(value.split(",")):
        field = f"{name}[{r}]"
        length, _, rest = text.partition(":")
        mask_text, _, side = rest.partition(":")
        if side not in ("", "left", "right"):
            raise InvalidCase.because(field, text, "padding goes left or right")
        mask = read_mask(field, mask_text)
        tokens = _whole_number(field, length)
        if len(mask) > tokens:
            raise InvalidCase.because(
                field,
                text,
                f"a mask of {len(mask)} bits on {tokens} tokens would supervise "
                "padding; give one bit per token",
            )
        if len(mask) < tokens or not mask:
            raise InvalidCase.because(
                field, text, f"{len(mask)} mask bits for {tokens} tokens; give one bit per token"
            )
        rows.append(Row(mask, "left" if side == "left" else "right"))
    return {"rows": tuple(rows)}


def _read_ids(name: str, value: str) -> dict[str, Any]:
    rule = "write one list of token ids per row, for example ids=[1,2,3],[4,5]"
    try:
        rows = json.loads(f"[{value}]")
    except (ValueError, RecursionError):
        raise InvalidCase.because(name, value, rule) from None
    if not all(isinstance(row, list) for row in rows):
        raise InvalidCase.because(name, value, rule)
    return {"ids": tuple(map(tuple, rows))}


def _read_heads(name: str, value: str) -> dict[str, Any]:
    heads, _, kv_heads = value.partition("/")
    return {
        "heads": _whole_number(name, heads),
        "kv_heads": _whole_number(name, kv_heads if "/" in value else heads),
    }


def _whole_number(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise InvalidCase.because(name, value or "nothing", "use a whole number")
    return int(value)


def _number_field(name: str, value: str) -> dict[str, Any]:
    return {_ATTRIBUTES[name]: _whole_number(name, value)}


def _fraction_field(name: str, value: str) -> dict[str, Any]:
    if not _FRACTION.fullmatch(value):
        raise InvalidCase.because(name, value or "nothing", "use a number such as 0.5 or -1e-05")
    return {_ATTRIBUTES[name]: float(value)}


def _flag_field(name: str, value: str) -> dict[str, Any]:
    if value not in ("0", "1"):
        raise InvalidCase.because(name, value, "use 0 or 1")
    return {_ATTRIBUTES[name]: value == "1"}


def _word_field(name: str, value: str) -> dict[str, Any]:
    return {_ATTRIBUTES[name]: value}


_ALWAYS = {"layers": "layers", "vocab": "vocab", "sp": "sp", "dp": "dp"}
_UNLESS_DEFAULT = {
    "dim": "head_dim",
    "model": "model",
    "tied": "tied",
    "window": "window",
    "micro": "micro_batches",
    "loss": "loss",
    "kernel": "kernel",
    "checkpoint": "checkpoint",
    "wrapper": "wrapper",
    "sync": "sync",
    "compiled": "compiled",
    "mixed": "mixed",
    "pad": "pad_id",
    "steps": "steps",
    "nudge": "nudge",
}
_ATTRIBUTES = {**_ALWAYS, **_UNLESS_DEFAULT, "dtype": "dtype", "seed": "seed"}
_FIELDS = {"heads": ("heads", "kv_heads"), **{n: (a,) for n, a in _ATTRIBUTES.items()}}
_DEFAULTS = {name: field.default for name, field in Case.__dataclass_fields__.items()}
_READERS: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "rows": _read_rows,
    "ids": _read_ids,
    "heads": _read_heads,
    **dict.fromkeys(
        ("layers", "vocab", "sp", "dp", "dim", "window", "micro", "pad", "steps", "seed"),
        _number_field,
    ),
    "nudge": _fraction_field,
    **dict.fromkeys(("tied", "checkpoint", "compiled", "mixed"), _flag_field),
    **dict.fromkeys(("model", "loss", "dtype", "kernel", "wrapper", "sync"), _word_field),
}
