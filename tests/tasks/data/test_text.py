"""The tokenizer of a run: its own, the config's, that of prepared data, or that of the pretrained
run."""

from types import SimpleNamespace

import numpy as np
import pytest

from gmlp_flax.data.text.fixed_vocabulary import SPECIAL_PIECES
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.data.text import configured_tokenizer, report_unknown, require_texts
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from tests.failures import failure
from tests.training import tiny


@pytest.fixture(scope="module")
def tokenizers():
    """Two different tokenizers."""
    text = " ".join(tiny.WORDS)
    shorter_text = " ".join(tiny.WORDS[:20])
    first = Tokenizer.train([text] * 20, 300)
    second = Tokenizer.train([shorter_text] * 20, 300)
    return first, second


@pytest.fixture
def config(tmp_path):
    return tiny.text_config(tmp_path)


@pytest.fixture
def run(tmp_path):
    """The folder of a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def test_tokenizer_of_the_run_folder_precedes_an_inherited_one(config, run, tokenizers):
    first, second = tokenizers
    assert configured_tokenizer(config, RunFiles(str(run))) is None
    inherited = RunFiles(str(run), inherited={TOKENIZER_FILE: second.model})
    assert configured_tokenizer(config, inherited) == second
    first.save(run / TOKENIZER_FILE)
    assert configured_tokenizer(config, inherited) == first


def test_tokenizer_of_a_checkpoint_is_the_one_of_its_run(config, tokenizers):
    first, second = tokenizers
    files = RunFiles(
        local={TOKENIZER_FILE: first.model},
        inherited={TOKENIZER_FILE: second.model},
    )
    assert configured_tokenizer(config, files) == first


def test_run_folder_without_its_tokenizer_file(config, run, tokenizers, tmp_path):
    """As on another machine: the run folder has its own copy."""
    first, second = tokenizers
    first.save(run / TOKENIZER_FILE)
    files = RunFiles(str(run))
    config.data.tokenizer = str(tmp_path / "moved.model")
    assert configured_tokenizer(config, files) == first
    second.save(tmp_path / "moved.model")
    message = failure(configured_tokenizer, config, files)
    assert "two different tokenizers" in message
    assert str(run / TOKENIZER_FILE) in message
    assert "config.data.tokenizer" in message
    config.data.tokenizer = str(tmp_path / "none.model")
    new_run = RunFiles(str(tmp_path / "new"))
    message = failure(configured_tokenizer, config, new_run)
    assert "config.data.tokenizer" in message
    assert "none.model" in message


def test_second_tokenizer_file_must_be_equal(config, tokenizers, tmp_path):
    first, second = tokenizers
    one = str(tmp_path / "one.model")
    other = str(tmp_path / "other.model")
    first.save(one)
    second.save(other)
    files = RunFiles()
    assert configured_tokenizer(config, files, {"one": one}) == first
    message = failure(configured_tokenizer, config, files, {"one": one, "other": other})
    assert "one, " in message
    assert "other, " in message


def test_damaged_file_is_named(config, run):
    path = run / TOKENIZER_FILE
    path.write_bytes(b"no model")
    files = RunFiles(str(run))
    assert str(path) in failure(configured_tokenizer, config, files)


def test_mostly_unknown_tokens_are_refused():
    tokenizer = SimpleNamespace(may_be_unknown=True, unk_id=1, special_ids=(0, 1))
    source = [{"tokens": np.array([1, 1, 9])}]
    assert "passages" in failure(report_unknown, tokenizer, source, "passages")


def test_byte_vocabulary_is_not_checked_for_unknown_tokens(capsys):
    tokenizer = SimpleNamespace(may_be_unknown=False)
    source = [{"tokens": np.array([1, 1, 9])}]
    report_unknown(tokenizer, source, "passages")
    assert capsys.readouterr().err == ""


def test_vocabulary_reading_of_a_run_is_kept(config, run, tmp_path, capsys):
    """A run keeps the lower case and accents with which it started, even if the file's settings
    change."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    pieces = "\n".join([*SPECIAL_PIECES, "schön", "schon"]).encode()
    (tmp_path / "vocab.txt").write_bytes(pieces)
    files = RunFiles(str(run))
    config.data.tokenizer = str(tmp_path / "vocab.txt")
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"do_lower_case": true, "strip_accents": false}')
    tokenizer = configured_tokenizer(config, files)
    assert tokenizer.encode("Schön") == [5]
    assert "accents are kept" in capsys.readouterr().err
    settings.write_text('{"do_lower_case": false}')
    tokenizer.save(run / TOKENIZER_FILE)
    assert configured_tokenizer(config, files) == tokenizer
    (run / TOKENIZER_FILE).write_bytes(pieces)  # as version 0.2.0 kept it
    old = configured_tokenizer(config, files)
    assert old.encode("Schön") == [6]
    assert old.model == pieces

    inherited = RunFiles(inherited={TOKENIZER_FILE: tokenizer.model})
    assert configured_tokenizer(config, inherited) == tokenizer
    config.data.strip_accents = "True"
    assert configured_tokenizer(config, inherited).cases == (False, True)
    config.data.tokenizer = ""
    message = failure(configured_tokenizer, config, inherited)
    assert "strip_accents is True" in message
    assert "strip_accents is False" in message


def test_data_with_more_pieces_than_the_model_are_refused(config, tokenizers):
    files = RunFiles(local={TOKENIZER_FILE: tokenizers[0].model})
    config.model.vocab_size = tokenizers[0].vocab_size - 1
    data = MaskedLanguageModeling.Data(config, files)
    assert "config.model.vocab_size" in failure(data.assets)


def test_tokenizer_is_a_file_of_the_model(config, tokenizers):
    files = RunFiles(local={TOKENIZER_FILE: tokenizers[0].model})
    data = MaskedLanguageModeling.Data(config, files)
    assert data.assets() == {TOKENIZER_FILE: tokenizers[0].model}


@pytest.mark.parametrize(("unknown", "is_warning"), [(0, False), (1, True), (2, True)])
def test_unknown_tokens_are_reported(unknown, is_warning, capsys):
    tokenizer = SimpleNamespace(may_be_unknown=True, unk_id=1, special_ids=(0, 1))
    tokens = np.full(4, 9)
    tokens[:unknown] = 1
    source = [{"tokens": tokens}]
    report_unknown(tokenizer, source, "train examples")
    stderr = capsys.readouterr().err
    assert f"train examples: {25 * unknown}.0%" in stderr
    assert stderr.startswith("warning") == is_warning


def test_inputs_from_python_are_texts():
    require_texts(["one", "two"])
    assert "int" in failure(require_texts, ["one", 2])
