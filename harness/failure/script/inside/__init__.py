"""What a script has of its own, or instead of something of ours that can do more.

These modules are read, and never imported.
"""
