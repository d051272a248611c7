"""The rank pool: rank processes that stay alive and run case after case.

The processes, and how they talk:

* **controller**: the command or the test session. It owns a `RankPool`, submits cases and collects
  outcomes. Below the pool, a `FolderPool` serves the candidates of one folder, a `Dispatcher` one
  launch; a `Launch` has the sockets of the ranks, and a `Host` the processes on this host.
* **supervisor**: a child of the controller, with a private folder. It imports torch once, starts
  the ranks of one launch after the other, and ends them. Controller and supervisor talk over a
  pair of sockets (`Pipe`).
* **agent**: the part of a supervisor that starts ranks and reports how each ended. It extends
  torch's elastic agent, which is what torchrun runs.
* **rank**: a process of the mesh. It connects to a Unix socket in the folder of its supervisor,
  then imports, runs cases and answers. `Controller` is its end of the socket, `Link` the other.
* **other hosts**: a launcher such as torchrun may start processes on several hosts, a *world*.
  Then the first process of each other host keeps a supervisor and ranks there (`HostKeeper`), and
  passes their bytes on through the launcher's store (`Channel`). A host of a world is a *node*;
  the controller runs on node 0.

A *launch* is one set of ranks, from its start until it is killed. On a fault, the dispatcher
notices an `Incident`. A `FaultReport` gathers the incidents that follow from it, asks every living
rank for its stacks and collectives, and makes a `Fault` of the cause. Then the launch is killed,
and the cases behind the faulty one go to a fresh launch.

Why it is built like this:

 1. Ranks stay alive between cases, and supervisors between launches: most of the cost of a launch
    is the import of torch, and every fault needs a fresh launch.
 2. A rank connects before it imports anything heavy, so that its death is noticed at any moment.
 3. A separate thread reads a rank's socket: it answers while the main thread is in a collective.
 4. Messages are typed and tensors are safetensors: no byte that is received can execute anything.
 5. The controller waits for all sockets and the supervisor at once, with a deadline.
 6. When one rank ends, its agent does not stop the others: they can still report their stacks.
 7. After a fault the launch is killed, never tidied, because no state of its ranks can be trusted.
 8. If an idle rank fails, the next case has the fault: no failure may go unseen.
 9. A rank may finish the oldest case and fail in a later one before its peers finish. Then the
    oldest case is not to blame, and a fresh launch repeats the cases one at a time.
10. If ranks never come up, all waiting cases get that fault at once, without a second start.
11. A rank that still imports a library at the deadline is starting, and gets the time of a start.
    Time that a rank spent waiting for a processor of a busy machine does not count either.
12. Candidates of two folders have ranks of their own: neither sees what the other imports.
13. Nothing outlives the controller. A rank ends when its socket closes, a supervisor when its
    controller ends; both kill their descendants, which `/proc` names even in another session.
14. On one host nothing listens beyond loopback, and ranks need neither a network nor a name.

Import from the modules: a rank must be able to connect before anything heavy is loaded.
"""
