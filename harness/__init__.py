"""Prove a sequence-parallel training step equal to plain training, or show where they part."""

__version__ = "0.1.0"
