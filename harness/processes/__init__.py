"""Find, watch and end processes with what the kernel says of them.

Children of a candidate may change their session, empty their environment or lose their parent.
They are found all the same: `/proc` shows whose descendants they are, and whose environment holds
the address of a supervisor.
"""
