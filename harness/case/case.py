"""The dataclass `Case`, with the checks that make every instance valid."""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args, get_origin, get_type_hints

from harness.case.invalid import InvalidCase
from harness.case.line import format_line
from harness.case.row import Row

LossContract = Literal["token-mean", "micro-mean", "row-mean"]
Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
Model = Literal["llama", "qwen2", "qwen3"]
Kernel = Literal["eager", "sdpa", "varlen", "flash"]
Wrapper = Literal["none", "ddp", "fsdp"]
Sync = Literal["last", "each"]
Columns = Literal["drawn", "signs", "one", "zero"]

# A power of two, so that multiplying by it rounds nothing.
LEARNING_RATE = 2.0**-5
MAX_TOKENS = 1 << 24
_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,79}")
_SETTING_VALUE = re.compile(r"[A-Za-z0-9_.+-]{1,40}")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step on one ragged batch.

    Data-parallel replica d gets rows d, d+dp, d+2dp, ... It cuts them, in that order, into
    `micro_batches` consecutive pieces whose sizes differ by at most one, larger pieces first.
    Token t of row r has the number `offsets[r] + t`; these numbers span all replicas.

    The hidden size is heads x head_dim, the feed-forward size twice that. The models have the
    architectures published under their names: `qwen2` is `llama` with biases on queries, keys
    and values; `qwen3` is `llama` with norms over the head dim on queries and keys. `pad_id` is
    also an ordinary vocabulary entry: a row may contain it as a real token.

    The case takes `steps` training steps on the same rows, and the last one is judged. Each
    earlier step ends in plain SGD with LEARNING_RATE. Before the first step, `nudge` moves the
    seeded weights by that much along a seeded direction. `columns` is what the drawn columns of a
    recipe hold: numbers, only their signs, ones or zeros. `settings` are names and values, as
    texts, of settings of the step; those that a case leaves out have their defaults.

    The remaining fields change how training runs the step; they must not change its result:
    `wrapper` is what reduces gradients over ranks, `sync` whether that happens after the last
    micro-batch or after each, `compiled` compiles the model, `mixed` holds parameters in fp32
    and computes in `dtype`, `checkpoint` recomputes activations in backward.
    """

    rows: tuple[Row, ...]
    ids: tuple[tuple[int, ...], ...] | None = None
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    layers: int = 1
    vocab: int = 32
    model: Model = "llama"
    tied: bool = False
    window: int | None = None
    sp: int = 2
    dp: int = 1
    micro_batches: int = 1
    loss: LossContract = "token-mean"
    dtype: Dtype = "fp64"
    kernel: Kernel = "eager"
    checkpoint: bool = False
    wrapper: Wrapper = "none"
    sync: Sync = "last"
    compiled: bool = False
    mixed: bool = False
    pad_id: int = 0
    steps: int = 1
    nudge: float = 0.0
    columns: Columns = "drawn"
    settings: tuple[tuple[str, str], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_kinds()
        self._check_rows()
        self._check_heads()
        if self.mixed and self.dtype not in ("bf16", "fp16"):
            raise InvalidCase.because(
                "mixed", 1, f"dtype={self.dtype} is no less than fp32; use bf16 or fp16"
            )
        if self.pad_id >= self.vocab:
            raise InvalidCase.because(
                "pad_id", self.pad_id, f"outside the vocabulary 0..{self.vocab - 1}"
            )
        if self.ids is not None:
            self._check_ids(self.ids)
        if self.settings != ():
            self._check_settings()

    def _check_kinds(self) -> None:
        for field, least, most in (
            ("heads", 1, 1024),
            ("kv_heads", 1, 1024),
            ("head_dim", 2, 1024),
            ("layers", 1, 1024),
            ("vocab", 2, 1 << 24),
            ("sp", 1, 1024),
            ("dp", 1, 1024),
            ("micro_batches", 1, 1024),
            ("pad_id", 0, (1 << 24) - 1),
            ("steps", 1, 1024),
            ("seed", 0, (1 << 63) - 1),
        ):
            value = getattr(self, field)
            if type(value) is not int or not least <= value <= most:
                raise InvalidCase.because(
                    field, repr(value), f"use a whole number from {least} to {most}"
                )
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise InvalidCase.because(
                "window", repr(self.window), "use a whole number of tokens, or leave it out"
            )
        if type(self.nudge) is not float or not abs(self.nudge) <= 1:
            raise InvalidCase.because("nudge", repr(self.nudge), "use a float from -1.0 to 1.0")
        for field, choices in CHOICES.items():
            value = getattr(self, field)
            if type(value) is not type(choices[0]) or value not in choices:
                names = ", ".join(str(choice) for choice in choices)
                raise InvalidCase.because(field, repr(value), f"use one of {names}")

    def _check_rows(self) -> None:
        if type(self.rows) is not tuple or not all(type(row) is Row for row in self.rows):
            raise InvalidCase.because("rows", repr(self.rows), "use a tuple of Row")
        if not self.rows:
            raise InvalidCase.because("rows", "()", "a batch has at least one row")
        if self.tokens > MAX_TOKENS:
            raise InvalidCase.because("rows", f"{self.tokens} tokens", f"at most {MAX_TOKENS}")
        count = len(self.rows)
        if count % self.dp:
            raise InvalidCase.because(
                "dp",
                self.dp,
                f"{count} rows cannot be dealt evenly to {self.dp} replicas; "
                f"use a number of rows that {self.dp} divides",
            )
        if count // self.dp < self.micro_batches:
            raise InvalidCase.because(
                "micro_batches",
                self.micro_batches,
                f"each replica has {count // self.dp} rows and every micro-batch needs one; "
                f"use at most {count // self.dp}",
            )

    def _check_heads(self) -> None:
        if self.head_dim % 2:
            raise InvalidCase.because(
                "head_dim", self.head_dim, "rotary embedding turns pairs; use an even number"
            )
        if self.heads % self.kv_heads:
            raise InvalidCase.because(
                "kv_heads", self.kv_heads, f"use a number that divides heads={self.heads}"
            )
        if self.heads % self.sp:
            raise InvalidCase.because(
                "sp",
                self.sp,
                f"heads={self.heads} cannot be split over {self.sp} ranks, "
                f"{self.heads} % {self.sp} = {self.heads % self.sp}; "
                f"use an sp that divides {self.heads}",
            )
        if self.kv_heads % self.sp and self.sp % self.kv_heads:
            raise InvalidCase.because(
                "sp",
                self.sp,
                f"kv_heads={self.kv_heads} can be neither split nor repeated evenly over "
                f"{self.sp} ranks; use an sp that divides kv_heads or is a multiple of it",
            )

    def _check_ids(self, ids: tuple[tuple[int, ...], ...]) -> None:
        if type(ids) is not tuple or any(type(row) is not tuple for row in ids):
            raise InvalidCase.because("ids", repr(ids), "use one tuple of token ids per row")
        if len(ids) != len(self.rows):
            raise InvalidCase.because(
                "ids", repr(ids), f"there are {len(ids)} rows of ids for {len(self.rows)} rows"
            )
        for r, (row_ids, row) in enumerate(zip(ids, self.rows, strict=True)):
            if len(row_ids) != len(row):
                raise InvalidCase.because(
                    f"ids[{r}]", list(row_ids), f"{len(row_ids)} ids for {len(row)} tokens"
                )
            for t, value in enumerate(row_ids):
                if type(value) is not int:
                    raise InvalidCase.because(
                        f"ids[{r}][{t}]",
                        repr(value),
                        f"token ids are whole numbers, not {type(value).__name__}",
                    )
                if not 0 <= value < self.vocab:
                    raise InvalidCase.because(
                        f"ids[{r}][{t}]",
                        value,
                        f"outside the vocabulary 0..{self.vocab - 1}; raise vocab or fix the id",
                    )

    def _check_settings(self) -> None:
        if type(self.settings) is not tuple or not all(map(_is_setting, self.settings)):
            raise InvalidCase.because(
                "settings",
                repr(self.settings),
                "use pairs of a name and a value, of letters, digits and the signs _ . + -",
            )
        names = [name for name, _ in self.settings]
        if names != sorted(set(names)):
            raise InvalidCase.because("settings", repr(names), "sort them, and state each once")

    @property
    def tokens(self) -> int:
        """The number of real tokens in all rows."""
        return sum(len(row) for row in self.rows)

    @property
    def ranks(self) -> int:
        """The number of ranks that the step needs."""
        return self.dp * self.sp

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The number of each row's first token, and after them the number of all tokens."""
        return tuple(accumulate((len(row) for row in self.rows), initial=0))

    def ids_of(self, row: int) -> tuple[int, ...]:
        """Return the vocabulary ids of one row: the stated ones, or else ids from the seed."""
        if self.ids is not None:
            return self.ids[row]
        # A hash gives the same ids on every Python, platform and rank; a generator need not.
        length = len(self.rows[row])
        stream = hashlib.shake_256(f"ids/{self.seed}/{row}".encode()).digest(4 * length)
        return tuple(
            int.from_bytes(stream[4 * t : 4 * t + 4], "little") % self.vocab for t in range(length)
        )

    def draw(self, row: int, name: str) -> tuple[float, ...]:
        """Return a number from -1 to 1 for each token of a row, for a step that needs more data.

        The numbers depend on the seed, the name, and the row's ids and mask, not on the row's
        place in the batch. So equal rows have equal numbers, and so do all ranks.
        """
        content = f"{name}/{self.seed}/{self.rows[row].mask}/{self.ids_of(row)}"
        stream = hashlib.shake_256(content.encode()).digest(4 * len(self.rows[row]))
        return tuple(
            int.from_bytes(stream[start : start + 4], "little") / 2**31 - 1
            for start in range(0, len(stream), 4)
        )

    @cached_property
    def id(self) -> str:
        """A short digest of the canonical line."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:10]

    def __str__(self) -> str:
        return format_line(vars(self), USUAL)

    # A case shown anywhere can be pasted into any command that reads a line.
    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Print the line in Hypothesis and notebooks, which else print the fields one by one."""
        printer.text(str(self))


def _is_setting(pair: object) -> bool:
    return (
        type(pair) is tuple
        and len(pair) == 2
        and all(type(text) is str for text in pair)
        and bool(_SETTING_NAME.fullmatch(pair[0]) and _SETTING_VALUE.fullmatch(pair[1]))
    )


# The default of every field.
USUAL = {name: field.default for name, field in Case.__dataclass_fields__.items()}
# The allowed values of every field that has only a few.
CHOICES: dict[str, tuple[Any, ...]] = {
    name: get_args(kind) or (False, True)
    for name, kind in get_type_hints(Case).items()
    if kind is bool or get_origin(kind) is Literal
}
