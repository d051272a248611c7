"""The rank pool: rank processes that stay alive and run case after case.

The **controller** is the command or the test session. It owns a `RankPool`, submits cases and
collects outcomes. Below the pool, a `FolderPool` serves the candidates of one folder, a
`Dispatcher` one launch; a `Launch` has the sockets of the ranks, and a `Host` the processes on
this host.

The rooms below explain the other processes, each in its docstring: `rank_program` a rank,
`supervision` the processes that start ranks, `worlds` other hosts, `wire` how they talk.

A *launch* is one set of ranks, from its start until it is killed. On a fault, the dispatcher
notices an `Incident`. A `FaultReport` gathers the incidents that follow from it, asks every living
rank for its stacks and collectives, and makes a `Fault` of the cause. Then the launch is killed,
and the cases behind the faulty one go to a fresh launch.

Why it is built like this:

1. Ranks stay alive between cases: most of the cost of a launch is the import of torch.
2. The controller waits for all sockets and the supervisor at once, with a deadline.
3. After a fault the launch is killed, never tidied, because no state of its ranks can be trusted.
4. If an idle rank fails, the next case has the fault: no failure may go unseen.
5. A rank may finish the oldest case and fail in a later one before its peers finish. Then the
   oldest case is not to blame, and a fresh launch repeats the cases one at a time.
6. If ranks never come up, all waiting cases get that fault at once, without a second start.
7. A rank that still imports a library at the deadline is starting, and gets the time of a start.
   Time that a rank spent waiting for a processor of a busy machine does not count either.
8. Candidates of two folders have ranks of their own: neither sees what the other imports.
"""
