"""The tokenizer that a run was given."""

import pytest

from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.vocabulary import TOKENIZER_FILE, StandInTokenizer, given_tokenizer
from tests.training import tiny


@pytest.fixture(scope="module")
def tokenizers():
    return [Tokenizer.train([" ".join(words)] * 20, 300) for words in (tiny.WORDS, tiny.WORDS[:20])]


def task(tmp_path, folder="run", inherited=()):
    return MaskedLanguageModeling(tiny.text_config(tmp_path), str(tmp_path / folder), dict(inherited))


def test_the_run_folders_tokenizer_comes_before_an_inherited_one(tmp_path, tokenizers):
    first, second = tokenizers
    assert given_tokenizer(task(tmp_path), {}) is None
    inherited = {TOKENIZER_FILE: second.model}
    assert given_tokenizer(task(tmp_path, inherited=inherited), {}) == second
    (tmp_path / "run").mkdir()
    first.save(tmp_path / "run" / TOKENIZER_FILE)
    assert given_tokenizer(task(tmp_path, inherited=inherited), {}) == first


def test_a_run_folder_that_came_without_the_file_it_was_given(tmp_path, tokenizers):
    """As on another machine: the folder has its own copy."""
    (tmp_path / "run").mkdir()
    tokenizers[0].save(tmp_path / "run" / TOKENIZER_FILE)
    run = task(tmp_path)
    run.config.data.tokenizer = str(tmp_path / "moved.model")
    assert given_tokenizer(run, {}) == tokenizers[0]
    tokenizers[1].save(tmp_path / "moved.model")
    with pytest.raises(DataError, match="^two different tokenizers: this run's, .* and config.data.tokenizer, .*"):
        given_tokenizer(run, {})
    run.config.data.tokenizer = str(tmp_path / "none.model")
    run.folder = str(tmp_path / "new")
    with pytest.raises(DataError, match="config.data.tokenizer is '.*none.model', which does not exist"):
        given_tokenizer(run, {})


def test_a_table_that_is_too_small_is_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    MaskedLanguageModeling(config, "", tokenizer=StandInTokenizer(320))
    with pytest.raises(DataError, match="the tokenizer has 321 pieces, config.model.vocab_size is 320: raise it"):
        MaskedLanguageModeling(config, "", tokenizer=StandInTokenizer(321))
