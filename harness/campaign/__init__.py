"""Campaigns: judge a candidate on many generated cases, in one run or in several parts.

- A *request* names the candidates, the fields of their cases, how many cases, and a seed.
- A *lot* is 100 cases of a campaign, which are drawn together. A *shard* (`--shard K/N`) is one
  part of a campaign, and is judged by one command.
- The *case source* draws the cases of a lot, and others for those that a candidate refuses.
- The *examiner* judges one lot on one pool of ranks; it shrinks, names and keeps the failures.
- A *tally* has the counts of one candidate. It includes its *coverage* (how much of what was
  requested was judged), its *bounds* (the values that the judged cases had), and its *leanings*
  (errors that are too small to see in one case, in `bias`).
- A *summary* has the tallies of all candidates; its record is the document of `check --json`.
- The *journal* keeps the summary of each lot in a folder, from which `--resume` goes on.

`check` runs a campaign and shows it; `conduct` hands its lots to an engine; `merge` adds the
documents of shards; `first_failure` finds a failure again from its request.

1. A lot is drawn from the seed and its own number. So any process can draw any lot alone, and the
   first case of a large campaign comes as soon as that of a small one.
2. Tallies and summaries add up to the same numbers in any order. So pools, shards and resumed runs
   write the document that one pool would have written.
3. Lots are judged in any order, and counted in order. A candidate that has failed often enough is
   not judged on later lots. A lot that was begun for more candidates is judged again without it.
4. Every candidate is judged on as many cases as were requested. Cases that it refuses are
   replaced, until there are too many of them: then it lacks cases, which is a FAULT.
5. A campaign can pass every case and still prove nothing, or have an equal error in each case that
   is too small to see in one. So coverage and leanings are judged over all cases together.
6. A document that is read must equal the document that its own counts would write. No shard may be
   in two documents, and the judged cases of a lot must be those that were drawn for it.
7. A Ctrl-C waits until the current comparison is counted, and the journal ignores a line that was
   not written to its end. So an interrupted campaign counts every case once or not at all.
8. Modules that read, add and show documents do not import torch.
"""
