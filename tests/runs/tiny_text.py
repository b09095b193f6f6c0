"""A masked language model on random words, as --config=tests/runs/tiny_text.py:FOLDER; corpus and
cache are in FOLDER."""

from pathlib import Path

from tests.training import tiny


def get_config(arg):
    config = tiny.text_config(Path(arg))
    config.steps = 12
    config.log.every = 3
    config.checkpoint.every = 4
    return config
