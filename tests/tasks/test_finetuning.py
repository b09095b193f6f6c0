"""Where a finetuning run's vocabulary comes from, and what its model is told of padding."""

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from tests.training import tiny

NAMES = ("text_classification", "question_answering")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([" ".join(tiny.WORDS)] * 20, 320)


def config(name, **model):
    options = gmlp_config.default(task=name, block=model.get("block", "gmlp"))
    options.model.update(layers=1, d_model=4, d_ffn=8, length=12, vocab_size=320, **model)
    return options


@pytest.mark.parametrize("name", NAMES)
def test_the_vocabulary_is_inherited_or_given(name, tokenizer, tmp_path):
    inherited = {"tokenizer.model": tokenizer.model}
    task = tasks.create(config(name), str(tmp_path), inherited)
    assert task.tokenizer == tokenizer and task.assets()["tokenizer.model"] == tokenizer.model
    given = config(name)
    given.data.tokenizer = str(tmp_path / "given.model")
    tokenizer.save(given.data.tokenizer)
    assert tasks.create(given, str(tmp_path)).tokenizer == tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_without_a_vocabulary_there_is_one_line(name, tmp_path):
    with pytest.raises(DataError, match="--config.init_from=RUN, .*--config.data.tokenizer=FILE"):
        tasks.create(config(name), str(tmp_path))


@pytest.mark.parametrize("mask_padding", [False, True])
def test_padding_is_shown_if_asked_for(mask_padding, tokenizer, tmp_path, monkeypatch):
    options = config("text_classification", mask_padding=mask_padding)
    task = tasks.create(options, str(tmp_path), {"tokenizer.model": tokenizer.model})
    given = []
    monkeypatch.setattr(task, "apply", lambda params, *inputs: given.extend(inputs))
    tokens = np.array([[tokenizer.cls_id, 9, tokenizer.sep_id, tokenizer.pad_id]])
    batch = {"tokens": jnp.array(tokens), "segments": jnp.array([[0, 0, 0, 0]])}
    task.scores(None, batch, None)
    np.testing.assert_array_equal(given[0], tokens)
    np.testing.assert_array_equal(given[1], batch["segments"])
    assert (given[2] is None) if not mask_padding else (given[2].tolist() == [[True, True, True, False]])
