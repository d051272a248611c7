"""The processes of one launch on one host: started, watched and ended together.

* **supervisor**: a child of the controller, or of a host keeper, with a private folder. It imports
  torch once, starts the ranks of one launch after the other, and ends them. `Supervisor` is the
  other end of its `Pipe`.
* **agent**: the part of a supervisor that starts ranks and reports how each ended. It extends
  torch's elastic agent, which is what torchrun runs.
* **host**: the supervisor and the ranks of one launch, and the files that they write.

Why it is built like this:

1. Supervisors stay alive between launches: most of the cost of a launch is the import of torch,
   and every fault needs a fresh launch.
2. When one rank ends, its agent does not stop the others: they can still report their stacks.
3. Nothing outlives the controller. A supervisor ends when its controller ends, and kills its
   descendants, which `/proc` names even in another session.
4. On one host nothing listens beyond loopback, and ranks need neither a network nor a name.
"""
