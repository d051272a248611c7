"""What a rank sees of a step by itself: emitted keys, collectives, gradients.

Import from the modules: a controller reads collectives without torch.
"""
