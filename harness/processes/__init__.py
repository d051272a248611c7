"""What the kernel says of processes: whose children they are, when they end, for what they wait.

Nothing here knows what a process is for. Children of a candidate may change their session, empty
their environment or lose their parent. `/proc` still shows them, so they are found and killed all
the same.
"""
