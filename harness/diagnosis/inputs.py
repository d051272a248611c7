"""Name wrong inputs of the model: ids, and positions that are emitted or read off rotations."""

import numpy as np

from harness.compare import Look
from harness.diagnosis.evidence import Evidence, TokenTensor
from harness.trace.trace import Tokens, Values

# The model's base, stated here again: a wrong one in the reference must not explain itself.
ROPE_BASE = 10000.0


def name_positions(evidence: Evidence, got_n: Tokens) -> Look:
    """Name the way in which wrong positions were counted."""
    right_n, local_n = evidence.position_n, evidence.local_n
    wrong_n = got_n != right_n
    count = f"{int(wrong_n.sum())} of {len(got_n)} positions are wrong"
    first = int(np.flatnonzero(wrong_n)[0])
    summary = (
        f"{count}, first row {evidence.row_n[first]} position {right_n[first]}, "
        f"taken for {got_n[first]}"
    )
    if not evidence.edge_n.any():
        # One rank holds all: counting from the start of the shard is counting over the rows.
        local_n = np.full_like(local_n, -1)
    if ((got_n == local_n) | (~wrong_n & (right_n < local_n))).all():
        return Look("positions-restarted", f"{summary}: counted from the start of the shard")
    following_n = evidence.moved(got_n, 1, fill=-1)
    joins_n = evidence.row_end_n & (following_n != -1)
    if joins_n.any() and (following_n[joins_n] == got_n[joins_n] + 1).all():
        return Look("positions-run-on", f"{summary}: a row goes on where the one before it ended")
    return Look("positions-wrong", summary)


def positions_from_rotation(
    evidence: Evidence, expected_nNH: Values, got_nNH: Values
) -> Tokens | None:
    """Return the positions for which queries or keys were rotated; None if none explain them."""
    half = expected_nNH.shape[-1] // 2
    frequency = ROPE_BASE ** (-np.arange(half) / half)
    turned = got_nNH[..., :half] + 1j * got_nNH[..., half:]
    straight = expected_nNH[..., :half] + 1j * expected_nNH[..., half:]
    found_n = np.full(evidence.case.tokens, -1)
    # Longer than any stream: a position may count padding, or other streams.
    for position in range(2 * evidence.case.tokens + evidence.case.ranks):
        angle = (position - evidence.position_n)[:, None, None] * frequency
        rotated = straight * np.exp(1j * angle)
        fits_n = evidence.alike(rotated.real, turned.real, dims=(1, 2)) & evidence.alike(
            rotated.imag, turned.imag, dims=(1, 2)
        )
        found_n = np.where((found_n < 0) & fits_n, position, found_n)
    return found_n if (found_n >= 0).all() else None


def name_shard_ends(evidence: Evidence, tensor: TokenTensor) -> Look | None:
    """Name values that are wrong at the last, or the first, tokens of shards and nowhere else."""
    pair = tensor.expected_n, tensor.got_n
    alike_n = evidence.alike(*pair, dims=tuple(range(1, tensor.expected_n.ndim)))
    wrong = tensor.tokens[~alike_n[tensor.tokens]]
    for end, is_at_end_n in evidence.shard_ends.items():
        # Positions that restart with a shard also make its first token wrong, but change losses.
        can_be_named = end == "last" or "nll" not in evidence.wrong_keys
        if can_be_named and wrong.size and is_at_end_n[wrong].all():
            count = f"{len(wrong)} of {len(tensor.tokens)} tokens"
            why = f"{count} have a wrong {tensor.key}, each the {end} of a shard in its row"
            return Look("shifted-after-cut", why)
    return None


def name_ids(evidence: Evidence, got_n: Tokens) -> Look:
    """Name ids that the model reads instead of the right ones."""
    wrong_n = got_n != evidence.ids_n
    first = int(np.flatnonzero(wrong_n)[0])
    return Look(
        "input-replaced",
        f"{int(wrong_n.sum())} of {len(got_n)} ids are wrong, first row {evidence.row_n[first]} "
        f"position {evidence.position_n[first]}: {got_n[first]} for {evidence.ids_n[first]}",
    )
