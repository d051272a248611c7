"""Rank processes that an elastic agent started and that stay alive from case to case.

Import from the modules: a rank must be able to connect before anything heavy is loaded.
"""
