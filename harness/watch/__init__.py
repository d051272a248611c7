"""What is seen of a step from within a rank, and nobody has to tell: keys, collectives, gradients.

Import from the modules: a controller reads collectives without torch.
"""
