"""ListOps: its trees, its data set on disk, and its symbols as tokens."""
