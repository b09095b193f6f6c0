"""Training: one file per concern. `loop.py` shows a run from its beginning to its end."""
