"""Published implementations: a folder each, and what their folders share."""
