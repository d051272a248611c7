"""A candidate as somebody outside the project keeps it, in a file of its own."""

DOUBLED = """
from harness.candidates.own.native import LocalDialect

class Doubled(LocalDialect):
    name = "doubled"

    def reduce(self, model, rank):
        super().reduce(model, rank)
        for parameter in model.parameters():
            parameter.grad *= 2

DOUBLED = Doubled()
"""
