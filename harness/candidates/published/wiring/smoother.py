"""The loss of label smoothing, which keeps no loss of a single token."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from harness.candidates.published.wiring.decoder import IGNORED


def smoothing(trainer: Any) -> Any:
    """The trainer's own smoother, after each token's loss has been emitted."""
    released = trainer.label_smoother

    def smooth(
        outputs: Any, labels: Tensor, *, shift_labels: bool = False, **given: Any
    ) -> Tensor:
        tell(trainer, outputs["logits"], labels, shift=shift_labels)
        loss: Tensor = released(outputs, labels, shift_labels=shift_labels, **given)
        return loss

    return smooth


def tell(trainer: Any, logits: Tensor, labels: Tensor, *, shift: bool) -> None:
    """Emit losses of pairs as the released smoother makes them, inside a rank's own tokens."""
    if shift:
        labels = F.pad(labels[..., 1:], (0, 1), value=IGNORED)
    labels, tokens = labels.flatten(), trainer.tokens.flatten()
    shares = logits.detach().flatten(0, -2).float().log_softmax(-1)
    trainer.say("labels", labels, tokens)
    trainer.say("nll", F.nll_loss(shares, labels, reduction="none", ignore_index=IGNORED), tokens)
