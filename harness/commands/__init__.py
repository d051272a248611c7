"""The commands, one to a file. Each adds its options, and imports heavy things when it runs."""
