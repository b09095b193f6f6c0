"""--config=tests/runs/tiny_text.py:FOLDER, a masked language model on random words; corpus and
cache in FOLDER."""

from pathlib import Path

from tests.training import tiny


def get_config(arg):
    config = tiny.text_config(Path(arg))
    config.steps = 12
    config.log.every = 3
    config.checkpoint.every = 4
    return config
