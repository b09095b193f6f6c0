"""The training loop, one concern a file; `loop.py` tells the story of a run."""
