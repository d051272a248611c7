"""What becomes of a failure: shrunk, confirmed, kept, shown again."""
