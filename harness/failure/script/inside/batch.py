"""A case that is known to be valid."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Row:
    """The ids of its tokens, which of them are targets of the loss, the side of its padding."""

    ids: tuple[int, ...]
    mask: str
    side: str

    def __len__(self) -> int:
        return len(self.ids)

    def supervised(self) -> list[int]:
        # Nothing predicts the first token.
        return [t for t in range(1, len(self)) if self.mask[t] == "1"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The batch, the model, the mesh and the loss. Replica d has the rows d, d+dp, d+2dp, ..."""

    rows: tuple[Row, ...]
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    model: str
    tied: bool
    window: int | None
    sp: int
    dp: int
    micro_batches: int
    loss: str
    dtype: str
    kernel: str
    pad_id: int
    steps: int
    checkpoint: bool
    wrapper: str
    sync: str
    compiled: bool
    mixed: bool
    nudge: float
    seed: int

    @property
    def tokens(self) -> int:
        return self.offsets[-1]

    @property
    def ranks(self) -> int:
        return self.dp * self.sp

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The number of each row's first token, and that of all tokens."""
        return tuple(accumulate(map(len, self.rows), initial=0))

    def ids_of(self, row: int) -> tuple[int, ...]:
        return self.rows[row].ids
