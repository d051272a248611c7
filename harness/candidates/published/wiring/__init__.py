"""What the wirings of published libraries have in common: rows, losses, gradients, limits.

None of it comes from the native candidates: a mistake here is nobody's but a wiring's, and shows
at sp 1, where no library can be blamed.
"""
