"""Every name that a failure can have, with what it looks like in data and its usual cause."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One kind of failure."""

    name: str
    looks: str
    cause: str


_ALL = (
    Anomaly(
        "label-shifted",
        "every label is the token itself, or the one two places on, instead of the next",
        "labels are shifted twice (by the collator and by the loss) or never",
    ),
    Anomaly(
        "label-rolled-locally",
        "the last label of a shard is the first token of the same shard",
        "labels are rolled after the stream is cut, not before",
    ),
    Anomaly(
        "label-lost-at-edge",
        "the last token of a shard has no label, or no weight in the loss",
        "logits and labels are shifted inside each shard",
    ),
    Anomaly(
        "label-wrapped",
        "the last token of the stream is trained to predict the first",
        "the wrapped label of a roll is not masked",
    ),
    Anomaly(
        "label-crosses-rows",
        "the last token of a row is trained to predict the first of the next row",
        "packed rows are shifted as one stream and row ends are not masked",
    ),
    Anomaly(
        "label-replaced",
        "a label is neither the token's successor nor another's near it",
        "labels are filled, padded or sliced in another layout than the tokens",
    ),
    Anomaly(
        "mask-shifted",
        "the loss counts the tokens beside those that are supervised",
        "the loss mask is not shifted with the labels, or is shifted twice",
    ),
    Anomaly(
        "mask-replaced",
        "the loss counts other tokens than the mask says, and not its neighbours",
        "another mask is taken for it, it is dropped, or it is cut in another layout",
    ),
    Anomaly(
        "positions-restarted",
        "positions begin again where a rank's shard begins",
        "positions are counted from zero on each rank",
    ),
    Anomaly(
        "positions-run-on",
        "positions do not begin again with a row",
        "positions are counted over the packed stream",
    ),
    Anomaly(
        "positions-wrong",
        "a token is rotated for another position than its own, in no simple pattern",
        "positions are sliced, padded or permuted otherwise than the tokens",
    ),
    Anomaly(
        "input-replaced",
        "the model reads another id than the row has",
        "padding, a mask or another shard is written over real tokens",
    ),
    Anomaly(
        "shifted-after-cut",
        "what each token is given beside its label is wrong at the last or first of a shard alone",
        "it is shifted after the stream is cut, not before",
    ),
    Anomaly(
        "column-shifted",
        "a column of the recipe, or what a teacher says, is shifted against its tokens",
        "it is shifted never, twice, or after it is cut, and labels once before",
    ),
    Anomaly(
        "column-misplaced",
        "a row has the numbers of another row, or a shard those of another shard",
        "a column of the recipe is sorted, gathered or cut otherwise than the tokens",
    ),
    Anomaly(
        "head-order",
        "attention's output holds the right numbers in another order, or of mixed heads",
        "an all-to-all is followed by a reshape without the matching permute",
    ),
    Anomaly(
        "exchange-incomplete",
        "attention's output is zero where other ranks should have sent it",
        "an asynchronous exchange is read before it is waited for",
    ),
    Anomaly(
        "keys-repeated",
        "the keys of one shard count several times in attention",
        "keys that all ranks have are exchanged as if each rank had its own",
    ),
    Anomaly(
        "kv-repeat",
        "a query head attends with another kv head than its own",
        "kv heads are tiled instead of interleaved, or torn from their group",
    ),
    Anomaly(
        "heads-uncut",
        "of what each head has of its own, only the first rank's share learns",
        "a sink, slope or bias of each head is not cut to the heads that a rank computes",
    ),
    Anomaly(
        "segment-leak",
        "a token attends to tokens of another row",
        "row boundaries are lost on the way to the kernel",
    ),
    Anomaly(
        "attention-cut",
        "a token does not attend to all earlier tokens of its row that it should see",
        "boundaries, windows or lengths of a shard are taken for those of the stream",
    ),
    Anomaly(
        "window-ignored",
        "a token attends beyond its sliding window",
        "the window is dropped, or gated on the local length",
    ),
    Anomaly(
        "softmax-scale",
        "attention is sharper or flatter than it should be",
        "scores are scaled twice, never, or by another size than the head's",
    ),
    Anomaly(
        "parameter-dropped",
        "the model computes as if a parameter were not there, which learns nothing",
        "a wrapper of attention does not hand on what it does not know, such as sinks",
    ),
    Anomaly(
        "parameter-scaled",
        "the model computes as if a parameter were larger or smaller by one factor",
        "each rank adds the whole of a bias to its part of a sum, or a scale is applied twice",
    ),
    Anomaly(
        "logits-scaled",
        "logits are what they should be times one factor",
        "a temperature divides them in one policy only, or twice",
    ),
    Anomaly(
        "clip-wrong",
        "where a ratio, a value or a weight is beyond its limit, its token trains otherwise",
        "a clip is left out, or the wrong one of the clipped and the free loss is taken",
    ),
    Anomaly(
        "constant-trained",
        "parameters have gradients of what the loss takes for constant, such as a weight",
        "a detach is left out, or does not reach what other ranks have sent",
    ),
    Anomaly(
        "future-leak",
        "a token attends to later ones",
        "the causal mask is dropped, or is that of tokens in another order",
    ),
    Anomaly(
        "pad-leak",
        "padding takes part: in attention, in the loss or in a gradient",
        "pad rows are not excluded by mask, boundary or weight",
    ),
    Anomaly(
        "token-lost",
        "no rank computes a token",
        "a remainder is dropped where the stream is cut",
    ),
    Anomaly(
        "token-owned-twice",
        "two ranks compute the same token",
        "shards overlap, or are chosen by the wrong rank number",
    ),
    Anomaly(
        "replica-split",
        "ranks that must agree end the step with different losses or gradients",
        "a reduction leaves ranks out, or peers were given different things",
    ),
    Anomaly(
        "gradient-times-sp",
        "every gradient is sp times too large",
        "every peer's full loss is summed, or a mean is paid for twice",
    ),
    Anomaly(
        "gradient-over-sp",
        "every gradient is sp times too small",
        "a local share is averaged over peers",
    ),
    Anomaly(
        "gradient-times-dp",
        "every gradient is dp times too large",
        "a mean over replicas is taken for a sum, or paid for twice",
    ),
    Anomaly(
        "gradient-over-dp",
        "every gradient is dp times too small",
        "a share of the global loss is averaged over replicas",
    ),
    Anomaly(
        "gradient-scaled",
        "every gradient is off by one factor that is no number of ranks",
        "micro-batches, accumulation or a constant enter the scale",
    ),
    Anomaly(
        "gradient-partial",
        "forward and loss are right; gradients are not whole, or not this step's alone",
        "some ranks' share is left out of a reduction, or the backward of an exchange is wrong",
    ),
    Anomaly(
        "gradient-missing",
        "forward and loss are right; a gradient is zero",
        "a collective or a detach cuts the graph",
    ),
    Anomaly(
        "frozen-trained",
        "only parameters that plain training freezes have wrong gradients",
        "the step, or what wraps its model, has them require gradients again",
    ),
    Anomaly(
        "denominator-per-rank",
        "each rank's tokens weigh what they would if the rank were alone",
        "the mean of the ranks' means is taken for the mean",
    ),
    Anomaly(
        "statistic-per-rank",
        "what a loss computes over rows or the batch, such as an advantage, is that of each shard",
        "a mean, a variance or a sum over later tokens is taken after the batch is cut",
    ),
    Anomaly(
        "denominator-per-part",
        "each row's, micro-batch's or replica's tokens weigh what they would alone, or together, "
        "against the loss contract",
        "means are averaged whose counts differ, or joined that should be averaged",
    ),
    Anomaly(
        "denominator-clamped",
        "all tokens weigh too little by as many as there are ranks or parts without any target",
        "each part's count is clamped to one before counts are summed",
    ),
    Anomaly(
        "denominator-wrong-count",
        "all tokens weigh too much or too little by one factor",
        "padding, prompts or first tokens are counted as targets, or targets are not",
    ),
    Anomaly(
        "weights-wrong",
        "losses of tokens are right, and neither the loss nor the gradients are",
        "tokens are counted, masked or divided otherwise than the loss contract says",
    ),
    Anomaly(
        "term-misweighted",
        "a term of the loss, such as a KL or a balance, counts too much, too little or not at all",
        "its coefficient is lost, or ranks add it up where the loss has their mean",
    ),
    Anomaly(
        "term-wrong",
        "a term of the loss is wrong in itself, and all else that the loss has is right",
        "it is computed from other numbers, over other tokens, or by another formula",
    ),
    Anomaly(
        "loss-misreported",
        "gradients are right and the reported loss, or a metric beside it, is not",
        "the number for the log is reduced otherwise than the loss",
    ),
    Anomaly(
        "low-precision",
        "small errors everywhere, or values that a shorter format holds exactly",
        "something is computed, summed or sent in a shorter format",
    ),
    Anomaly(
        "non-finite",
        "a NaN or an infinity",
        "a mean over nothing, a softmax over nothing, or memory that was never written",
    ),
    Anomaly(
        "not-repeatable",
        "the same case gives other numbers when it is run again",
        "a race, noise without a seed, or memory that was never written",
    ),
    Anomaly(
        "stale-state",
        "what ran before changes the outcome: an earlier step, or an earlier case",
        "something is kept that should be computed anew",
    ),
    Anomaly(
        "ranks-beside",
        "a case passes on as many ranks as it needs, and not where there are others beside them",
        "a collective on torch's default group, or groups over all ranks: use those of `rank`, "
        "or state `ranks=all` in `limits`",
    ),
    Anomaly(
        "collective-mismatch",
        "ranks wait in different collectives, or for a rank that never comes",
        "a branch that only some ranks take lies around a collective",
    ),
    Anomaly(
        "crashed",
        "a rank raises or dies",
        "shapes or values that a layout never met before",
    ),
    Anomaly(
        "vacuous",
        "nothing or too little was examined, or sequence parallelism was not in effect",
        "a setting without a consumer, a world of one, gradients that are not emitted",
    ),
    Anomaly(
        "unclassified",
        "none of the above",
        "read the first divergent tensor and what follows it",
    ),
)
# Names for a failure that changes from run to run; they come before those of its tensors.
RUN_DEPENDENT = ("stale-state", "not-repeatable", "ranks-beside")
ANOMALIES = {anomaly.name: anomaly for anomaly in _ALL}
