"""What the controller, supervisors, ranks and other hosts send each other, as typed messages.

A *message* becomes a *frame*: bytes with a length. A `Reader` makes messages of bytes, however
they were cut. A `Pipe` carries frames between a supervisor and the process that started it, a
`Link` is the controller's end of the socket of one rank.

Why it is built like this:

1. Messages are typed and tensors are safetensors: no byte that is received can execute anything.
2. Messages and frames are made without torch: a process can report that it cannot import torch.
"""
