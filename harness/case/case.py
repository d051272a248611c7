"""Everything that determines a run, and nothing else."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args, get_origin, get_type_hints

from harness.case.invalid import InvalidCase
from harness.case.line import line
from harness.case.row import Row

LossContract = Literal["token-mean", "micro-mean", "row-mean"]
Dtype = Literal["fp64", "fp32", "bf16", "fp16"]
Model = Literal["llama", "qwen2", "qwen3"]
Kernel = Literal["eager", "sdpa", "varlen", "flash"]
Wrapper = Literal["none", "ddp", "fsdp"]
Sync = Literal["last", "each"]

# A power of two: scaling by it rounds nothing.
LEARNING_RATE = 2.0**-5
MAX_TOKENS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step on one ragged batch.

    Rows go to data-parallel replica d as rows d, d+dp, d+2dp, ...; each replica cuts its rows,
    in that order, into `micro_batches` consecutive pieces whose sizes differ by at most one,
    the larger ones first. Token number `offsets[r] + t` is token t of row r, over all replicas.

    The hidden size is heads x head_dim, the feed-forward size twice that. As published under
    these names, a `qwen2` adds biases to queries, keys and values of a `llama`, and a `qwen3`
    norms over the head dim to queries and keys. `pad_id` is also an ordinary vocabulary entry: a
    row may contain it as a real token.

    The last of `steps` training steps on the same rows is judged; each one before it ends in
    plain SGD with LEARNING_RATE. `nudge` moves the seeded weights that far along a seeded
    direction before the first.

    `wrapper`, `sync`, `compiled`, `mixed` and `checkpoint` are what training puts around a step
    and must not change what comes out of it: who reduces gradients over ranks, after the last
    micro-batch or after each, a compiled model, parameters that are held in fp32 and computed
    with in `dtype`, activations that are computed twice.
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

    @property
    def tokens(self) -> int:
        """Real tokens over all rows."""
        return sum(len(row) for row in self.rows)

    @property
    def ranks(self) -> int:
        """How many ranks the step needs."""
        return self.dp * self.sp

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The number of each row's first token; one entry more than rows."""
        return tuple(accumulate((len(row) for row in self.rows), initial=0))

    def ids_of(self, row: int) -> tuple[int, ...]:
        """The vocabulary ids of one row: those stated, or those the seed gives."""
        if self.ids is not None:
            return self.ids[row]
        # A hash, not a random generator: the same on every Python, platform and rank.
        length = len(self.rows[row])
        stream = hashlib.shake_256(f"ids/{self.seed}/{row}".encode()).digest(4 * length)
        return tuple(
            int.from_bytes(stream[4 * t : 4 * t + 4], "little") % self.vocab for t in range(length)
        )

    def draw(self, row: int, name: str) -> tuple[float, ...]:
        """Numbers from -1 to 1, one for each token of a row: what a step needs besides ids.

        They follow from the seed, the name, and the row's ids and mask. So they go with the row
        wherever it stands, equal rows have equal ones, and they are the same on every rank.
        """
        content = f"{name}/{self.seed}/{self.rows[row].mask}/{self.ids_of(row)}"
        stream = hashlib.shake_256(content.encode()).digest(4 * len(self.rows[row]))
        return tuple(
            int.from_bytes(stream[place : place + 4], "little") / 2**31 - 1
            for place in range(0, len(stream), 4)
        )

    @cached_property
    def id(self) -> str:
        """A short digest of the canonical line."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:10]

    def __str__(self) -> str:
        return line(vars(self), USUAL)

    # Wherever one is shown, it is the line that everything reads.
    __repr__ = __str__

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Hypothesis and notebooks ask for it; they take a dataclass apart otherwise."""
        printer.text(str(self))


USUAL = {name: field.default for name, field in Case.__dataclass_fields__.items()}
# The values of fields that have one of a few.
CHOICES: dict[str, tuple[Any, ...]] = {
    name: get_args(kind) or (False, True)
    for name, kind in get_type_hints(Case).items()
    if kind is bool or get_origin(kind) is Literal
}
