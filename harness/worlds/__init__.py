"""Ranks on several hosts, whose first processes a launcher such as torchrun has started.

The processes of a launcher are a *world*. Its rank 0 is the controller. The first process of each
other host keeps a supervisor and ranks there (`HostKeeper`), and passes their bytes on through the
launcher's store (`Channel`). A host of a world is a *node*; the controller runs on node 0, and
`OtherHosts` is its end of all channels.

Why it is built like this:

1. Hosts talk through the launcher's store only: the network between them has to let nothing else
   of the harness through.
2. Each end repeats a sign of life, because a host that is cut off closes no socket.
3. A launch ends on every host when the channel to the controller ends.
"""
