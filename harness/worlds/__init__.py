"""Ranks on several hosts, whose first processes a launcher such as torchrun has started.

The processes of a launcher are a *world*. Its rank 0 is the controller. The first process of each
other host keeps a supervisor and ranks there (`HostKeeper`), and passes their bytes on through the
launcher's store (`Channel`). A host of a world is a *node*; the controller runs on node 0, and
`OtherHosts` is its end of all channels.

Why it is built like this:

1. Hosts talk through one store, at the address that the launcher gives: the harness needs no
   other port between them.
2. Each end repeats a sign of life, because a host that is cut off closes no socket.
3. A launch ends on every host when the channel to the controller ends.
"""
