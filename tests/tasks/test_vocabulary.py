"""The tokenizer that a run was given, and what finetuned models are told of padding."""

import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.vocabulary import TOKENIZER_FILE, StandInTokenizer, given_tokenizer
from tests.training import tiny


@pytest.fixture(scope="module")
def tokenizers():
    return [Tokenizer.train([" ".join(words)] * 20, 300) for words in (tiny.WORDS, tiny.WORDS[:20])]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([" ".join(tiny.WORDS)] * 20, 320)


def task(tmp_path, folder="run", inherited=()):
    return MaskedLanguageModeling(
        tiny.text_config(tmp_path), str(tmp_path / folder), dict(inherited)
    )


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
    with pytest.raises(
        DataError, match="^two different tokenizers: this run's, .* and config.data.tokenizer, .*"
    ):
        given_tokenizer(run, {})
    run.config.data.tokenizer = str(tmp_path / "none.model")
    run.folder = str(tmp_path / "new")
    with pytest.raises(
        DataError, match="config.data.tokenizer is '.*none.model', which does not exist"
    ):
        given_tokenizer(run, {})


def test_a_table_that_is_too_small_is_refused(tmp_path):
    config = tiny.text_config(tmp_path)
    MaskedLanguageModeling(config, "", tokenizer=StandInTokenizer(320))
    with pytest.raises(
        DataError, match="the tokenizer has 321 pieces, config.model.vocab_size is 320: raise it"
    ):
        MaskedLanguageModeling(config, "", tokenizer=StandInTokenizer(321))


NAMES = ("text_classification", "question_answering")


def finetuning_config(name, **model):
    options = gmlp_config.default(task=name, block=model.get("block", "gmlp"))
    options.model.update(layers=1, d_model=4, d_ffn=8, length=12, vocab_size=320, **model)
    return options


@pytest.mark.parametrize("name", NAMES)
def test_the_vocabulary_is_inherited_or_given(name, tokenizer, tmp_path):
    inherited = {"tokenizer.model": tokenizer.model}
    task = tasks.create(finetuning_config(name), str(tmp_path), inherited)
    assert task.tokenizer == tokenizer and task.assets()["tokenizer.model"] == tokenizer.model
    given = finetuning_config(name)
    given.data.tokenizer = str(tmp_path / "given.model")
    tokenizer.save(given.data.tokenizer)
    assert tasks.create(given, str(tmp_path)).tokenizer == tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_without_a_vocabulary_there_is_one_line(name, tmp_path):
    with pytest.raises(DataError, match="--config.init_from=RUN .*--config.data.tokenizer=FILE"):
        tasks.create(finetuning_config(name), str(tmp_path))


def test_padding_is_hidden_if_asked_for(tokenizer, tmp_path):
    task = tasks.create(
        finetuning_config(NAMES[0]), str(tmp_path), {"tokenizer.model": tokenizer.model}
    )
    tokens = np.array([[tokenizer.cls_id, 9, tokenizer.sep_id, tokenizer.pad_id]])
    assert task.padding_mask(tokens) is None
    task.config.model.mask_padding = True
    assert task.padding_mask(tokens).tolist() == [[True, True, True, False]]


def test_the_reading_of_a_run_stays(tmp_path, capsys):
    """A run keeps lower case and accents as it began, though the file is read in another way
    today."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    vocabulary = "\n".join([*SPECIAL_PIECES, "schön", "schon"]).encode()
    (tmp_path / "vocab.txt").write_bytes(vocabulary)
    run = task(tmp_path)
    run.config.data.tokenizer = str(tmp_path / "vocab.txt")
    begun = given_tokenizer(run)
    assert begun and begun.encode("Schön") == [5] and "accents are kept" in capsys.readouterr().err
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    begun.save(tmp_path / "run" / TOKENIZER_FILE)
    assert given_tokenizer(run) == begun
    (tmp_path / "run" / TOKENIZER_FILE).write_bytes(vocabulary)  # as version 0.2.0 kept it
    old = given_tokenizer(run)
    assert old and old.encode("Schön") == [6] and old.model == vocabulary
    inherited = task(tmp_path, "new", {TOKENIZER_FILE: begun.model})
    inherited.config.data.tokenizer = run.config.data.tokenizer
    assert given_tokenizer(inherited) == begun
    inherited.config.data.strip_accents = "True"
    found = given_tokenizer(inherited)
    assert found and found.cases == (False, True)
    inherited.config.data.tokenizer = ""
    with pytest.raises(
        DataError, match="strip_accents is True, but of .* its strip_accents is False"
    ):
        given_tokenizer(inherited)
