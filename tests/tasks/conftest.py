"""Fixtures of the task tests."""

import pytest

from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.training import tiny


@pytest.fixture(scope="session")
def masked(tmp_path_factory):
    """A masked language model of 2 layers and 16 tokens, and its data."""
    folder = tmp_path_factory.mktemp("text")
    return tiny.open_task(tiny.text_config(folder), folder)


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """A classifier of the embedded digits, trained on smoothed labels, and its data."""
    config = tiny.image_config()
    config.optimizer.label_smoothing = 0.1
    return tiny.open_task(config, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """The path of a tokenizer of tiny.WORDS, with 300 pieces."""
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    texts = []
    for first in range(40):
        texts.append(" ".join(tiny.WORDS[first:]))
    Tokenizer.train(texts, 300).save(path)
    return str(path)
