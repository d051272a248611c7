"""Where the jobs of a campaign are done: in this process, in several, or on the hosts of Ray.

An *engine* takes jobs and returns what each came to, in the order in which they are done. It knows
neither cases nor verdicts: a caller gives it `opens`, a context manager that opens ranks and
yields a function, which does one job and returns a record. Engines differ in where they call it:

* `ThisProcess` has one function, and calls it while the caller waits for the result.
* `Processes` starts several processes on this host, each with ranks of its own.
* `RayCluster` starts actors wherever the cluster has room, each with ranks of its own.

A *lot* is the unit of a campaign: cases that are drawn together, or a part of them.

1. A lot is drawn from its own number, so any process can draw it, in any order.
2. A process or host that is lost costs one job, which another gets. A job that is lost twice
   raises `Lost`: it may itself be the cause.
3. A job returns a record of plain data, which can come from another process or host; the caller's
   `read` makes a result of it.
4. Nothing outlives the command: a process ends with its parent, an actor with its Ray job.
"""
