"""Keys, or files in the folder of a WordPiece vocabulary, decide on lower case and accents."""

import pickle
import unicodedata

import pytest

from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.text.vocabularies import (
    ROLES,
    TEXTS,
    assert_same_ids,
    library,
    pieces_of,
    reference,
    vocabulary,
    write,
)
from tests.failures import failure

CASES = [(True, True), (True, False), (False, True), (False, False)]


def of_keys(folder, pieces, lower, strip):
    path = write(folder, pieces)
    return Tokenizer.load(path, do_lower_case=str(lower), strip_accents=str(strip))


def of_config(folder, pieces, lower, strip):
    config = {"do_lower_case": lower, "strip_accents": strip}
    path = write(folder, pieces, tokenizer_config=config)
    return Tokenizer.load(path)


def of_json_in_folder(folder, pieces, lower, strip):
    content = reference(pieces, lower, strip).to_str()
    path = write(folder, pieces, tokenizer=content)
    return Tokenizer.load(path)


def of_json(folder, pieces, lower, strip):
    of_json_in_folder(folder, pieces, lower, strip)
    return Tokenizer.load(folder / "tokenizer.json")


def of_folder(folder, pieces, lower, strip):
    of_json_in_folder(folder, pieces, lower, strip)
    return Tokenizer.load(folder)


def of_run_folder(folder, pieces, lower, strip):
    path = folder / "tokenizer.model"
    tokenizer = of_keys(folder, pieces, lower, strip)
    tokenizer.save(path)
    return Tokenizer.load(path)


WAYS = (of_keys, of_config, of_json_in_folder, of_json, of_folder, of_run_folder)


@pytest.mark.parametrize(("lower", "strip"), CASES)
def test_ids_are_those_of_the_library(tmp_path, lower, strip):
    """Keys and every kind of file give the same model."""
    pieces = pieces_of(True, True)
    expected = reference(pieces, lower, strip)
    texts = []
    for form in ("NFC", "NFD"):
        texts += [unicodedata.normalize(form, text) for text in TEXTS.values()]
    models = set()
    for way in WAYS:
        tokenizer = way(tmp_path / way.__name__, pieces, lower, strip)
        copy = pickle.loads(pickle.dumps(tokenizer))
        assert tokenizer.cases == (lower, strip)
        assert_same_ids(texts, tokenizer, expected)
        assert_same_ids(texts, copy, expected)
        models.add(tokenizer.model)
    assert len(models) == 1


def test_vocabularies_without_casing_are_refused(tmp_path):
    """It does not say whether text is lower-cased, and a wrong guess makes words [UNK]."""
    path = write(tmp_path, pieces_of(True, True))
    message = failure(Tokenizer.load, path)
    for words in ("vocab.txt", "tokenizer_config.json", "config.data.do_lower_case=True"):
        assert words in message


@pytest.mark.parametrize("lower", [True, False])
def test_do_lower_case_decides_on_accents_too(tmp_path, lower):
    path = write(tmp_path, pieces_of(lower, lower))
    tokenizer = Tokenizer.load(path, do_lower_case=str(lower))
    assert tokenizer.cases == (lower, lower)
    assert f"do_lower_case={lower}" in tokenizer.note
    for text in TEXTS.values():
        assert tokenizer.unk_id not in tokenizer.encode(text)


def test_old_copies_in_run_folders_are_read_as_before(tmp_path):
    """A copy is read as version 0.2.0 read it, with the default keys too."""
    content = vocabulary(pieces_of(True, False))
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    for old in (Tokenizer(content), Tokenizer.load(path)):
        assert old.cases == (True, True)
        assert old.model == content
        assert old.note == ""
    assert Tokenizer(content + b"New\n").cases == (False, False)
    message = failure(Tokenizer.load, path, strip_accents="False")
    assert "strip_accents is False" in message
    assert "its strip_accents is True" in message


def test_tokenizer_json_may_have_the_name_of_the_vocabulary(tmp_path):
    pieces = pieces_of(True, False)
    vocabulary_path = tmp_path / "ko_vocab.txt"
    with_crlf = vocabulary(pieces).replace(b"\n", b"\r\n")
    vocabulary_path.write_bytes(with_crlf)
    document = reference(pieces, False, True).to_str()
    (tmp_path / "ko_tokenizer.json").write_text(document)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    tokenizer = Tokenizer.load(vocabulary_path)
    assert tokenizer.cases == (False, True)
    assert "ko_tokenizer.json" in tokenizer.note


def test_other_json_files_are_not_read(tmp_path):
    """bert.json is the config of a model."""
    path = tmp_path / "bert.txt"
    path.write_bytes(vocabulary([*ROLES, "the"]))
    (tmp_path / "bert.json").write_text('{"hidden_size": 768, "do_lower_case": false}')
    assert "bert.txt" in failure(Tokenizer.load, path)


@pytest.mark.parametrize(
    ("value", "lower"),
    [("true", True), ("True", True), ("False", False), ("false", False)],
)
def test_config_values_may_be_text(tmp_path, value, lower):
    config = {"do_lower_case": value, "strip_accents": "false"}
    path = write(tmp_path, pieces_of(True, False), tokenizer_config=config)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.cases == (lower, False)


@pytest.mark.parametrize(("lower", "strip"), [(True, False), (False, True)])
def test_a_config_with_one_of_the_two_values_needs_a_key(tmp_path, lower, strip):
    """A key gives the other value."""
    pieces = pieces_of(lower, lower)
    path = write(tmp_path, pieces, tokenizer_config={"strip_accents": strip})
    assert "do_lower_case" in failure(Tokenizer.load, path)
    tokenizer = Tokenizer.load(path, do_lower_case=str(lower))
    assert tokenizer.cases == (lower, strip)
    assert f"strip_accents={strip}" in tokenizer.note
    expected = reference(pieces, lower, strip)
    assert_same_ids(TEXTS.values(), tokenizer, expected)


def test_keys_override_the_config(tmp_path):
    pieces = pieces_of(True, True)
    path = write(tmp_path, pieces, tokenizer_config={"do_lower_case": True})
    tokenizer = Tokenizer.load(path, strip_accents="False")
    assert tokenizer.cases == (True, False)
    assert "strip_accents=False" in tokenizer.note
    assert "tokenizer_config.json" in tokenizer.note


def test_contradicting_files_need_keys(tmp_path):
    pieces = pieces_of(True, False)
    document = reference(pieces, True, False).to_str()
    config = {"do_lower_case": False}
    path = write(tmp_path, pieces, tokenizer=document, tokenizer_config=config)
    message = failure(Tokenizer.load, path)
    assert "tokenizer.json: {'do_lower_case': True" in message
    assert "tokenizer_config.json: {'do_lower_case': False" in message
    assert "contradict" in failure(Tokenizer.load, path, do_lower_case="True")
    both = Tokenizer.load(path, do_lower_case="true", strip_accents="False")
    assert both.cases == (True, False)


def test_files_with_different_pieces_are_refused(tmp_path):
    document = reference(pieces_of(True, True), True, True).to_str()
    path = write(tmp_path, pieces_of(False, False), tokenizer=document)
    message = failure(Tokenizer.load, path)
    assert str(path) in message
    assert str(tmp_path / "tokenizer.json") in message


def test_another_word_tokenizer_is_refused(tmp_path):
    config = {"word_tokenizer_type": "mecab"}
    path = write(tmp_path, pieces_of(True, True), tokenizer_config=config)
    assert "word_tokenizer_type is 'mecab'" in failure(Tokenizer.load, path)


def test_a_config_may_keep_chinese_words_whole(tmp_path):
    config = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False}
    path = write(tmp_path, [*pieces_of(True, True), "东京"], tokenizer_config=config)
    tokenizer = Tokenizer.load(path)
    assert tokenizer.cases == (True, True)
    assert len(tokenizer.encode("东京")) == 1


def test_added_tokens_and_other_normalizers_are_those_of_the_library(tmp_path):
    pieces = pieces_of(True, True)
    expected = reference(pieces, True, False)
    expected.add_tokens(["COVID-19"])
    steps = [library.normalizers.NFD(), library.normalizers.Lowercase()]
    expected.normalizer = library.normalizers.Sequence(steps)
    path = write(tmp_path, pieces, tokenizer=expected.to_str())
    tokenizer = Tokenizer.load(path)
    assert tokenizer.vocab_size == len(pieces) + 1
    assert tokenizer.cases is None
    text = "Die COVID-19 Brücke"
    ids = tokenizer.encode(text)
    assert ids == expected.encode(text, add_special_tokens=False).ids
    assert len(pieces) in ids
    message = failure(Tokenizer.load, path, do_lower_case="True")
    assert "do_lower_case must be auto" in message


def test_tokens_that_the_vocabulary_does_not_have_are_refused(tmp_path):
    pieces = pieces_of(True, True)
    path = write(tmp_path, pieces, added_tokens={"[PAD]": 0})
    assert Tokenizer.load(path, do_lower_case="True").vocab_size == len(pieces)
    write(tmp_path, pieces, added_tokens={"[PAD]": 0, "<new>": len(pieces)})
    message = failure(Tokenizer.load, path)
    assert "added_tokens.json adds '<new>' (1 in all)" in message
