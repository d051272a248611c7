"""Steps that are wrong in some cases only: each is the native step with altered tensors there.

They were written to deceive the harness, and each passed once. None may pass now, unless the
printed bounds exclude the cases in which it is wrong.
"""

from collections.abc import Callable

from torch import Tensor

from harness.candidates import Emit, Rank
from harness.candidates.own.native import GATHER
from harness.case import Case

Where = Callable[[Case], bool]
Change = Callable[[str, Tensor, Case], Tensor]


def doubled(key: str, tensor: Tensor, _case: Case) -> Tensor:
    return 2 * tensor if key.startswith("grad.") else tensor


def everywhere(_case: Case) -> bool:
    return True


class Altered:
    """The native step, which refuses some cases and alters its tensors in some."""

    def __init__(
        self,
        name: str,
        wrong: Where = everywhere,
        change: Change = doubled,
        *,
        refuses: Where = lambda _case: False,
        limits: str = "",
    ) -> None:
        self.name, self.limits = name, limits
        self.wrong, self._change, self._refuses = wrong, change, refuses

    def supports(self, case: Case) -> str | None:
        return "not this one" if self._refuses(case) else GATHER.supports(case)

    def run(self, case: Case, rank: Rank, emit: Emit) -> None:
        def altered(key: str, tensor: Tensor, tokens: Tensor | None = None) -> None:
            emit(key, self._change(key, tensor, case) if self.wrong(case) else tensor, tokens)

        GATHER.run(case, rank, altered)


def scaled(share: float, *only: str) -> Change:
    """Make a change that scales the given tensors, or all gradients."""

    def change(key: str, tensor: Tensor, _case: Case) -> Tensor:
        is_scaled = key in only if only else key.startswith("grad.")
        return (tensor.double() * share).to(tensor.dtype) if is_scaled else tensor

    return change


def shares(case: Case) -> bool:
    return case.sp > 1


def has_a_target(case: Case) -> bool:
    return any("1" in row.mask[1:] for row in case.rows)


def longest(case: Case) -> int:
    return max(map(len, case.rows))


# These refuse the cases that the user asked for.
ONLYSP1 = Altered("onlysp1", refuses=shares, wrong=shares)
LIMSP1 = Altered("limsp1", limits="sp=1", wrong=shares)
NOTARGET = Altered("notarget", refuses=has_a_target)

# These are wrong beyond the usual sizes.
LONG = Altered("long", lambda case: longest(case) > 12)
ROWS = Altered("rows", lambda case: len(case.rows) > 8)
VOCAB = Altered("vocab", lambda case: case.vocab > 32)
DIM = Altered("dim", lambda case: case.head_dim >= 64)
LAYERS = Altered("layers", lambda case: case.layers > 2)
KV3 = Altered("kv3", lambda case: case.kv_heads == 3)
KV5 = Altered("kv5", lambda case: case.kv_heads == 5)
M128 = Altered("m128", lambda case: any(len(row) % 128 == 0 for row in case.rows))
STEP3 = Altered("step3", lambda case: case.steps >= 3)
SP3BAD = Altered("sp3bad", lambda case: case.sp == 3)
SP8 = Altered("sp8", lambda case: case.sp == 8)
DP4 = Altered("dp4", lambda case: case.dp == 4)
BEYOND = (
    *("LONG", "ROWS", "VOCAB", "DIM", "LAYERS", "KV3", "KV5", "M128", "STEP3"),
    *("SP3BAD", "SP8", "DP4"),
)

# These are off by little, and by the same factor in every case.
HUNDREDTH = Altered("hundredth", change=scaled(1.01, "grad.head"))
HALF_A_HUNDREDTH = Altered("half-a-hundredth", change=scaled(1.005))
