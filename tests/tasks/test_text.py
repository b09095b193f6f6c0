"""The tokenizer of a text model, its placeholder, padding, and what an input may be."""

import copy
import io
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import RunError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.text import StandInTokenizer, require_room
from tests.failures import failure, raised
from tests.training import tiny


@pytest.fixture(scope="module")
def model_bytes(vocabulary):
    """The file of a tokenizer with 300 pieces."""
    with open(vocabulary, "rb") as file:
        return file.read()


@pytest.fixture
def task(tmp_path, model_bytes):
    """A masked language model of 16 tokens."""
    return MaskedLanguageModeling(tiny.text_config(tmp_path), {TOKENIZER_FILE: model_bytes})


def test_model_without_files_has_a_placeholder_tokenizer(tmp_path):
    """It suffices for shapes and the loss; text is refused."""
    task = MaskedLanguageModeling(tiny.text_config(tmp_path))
    assert isinstance(task.tokenizer, StandInTokenizer)
    assert task.tokenizer.vocab_size == 320
    assert task.shapes()["embedding"].shape == (320, 8)
    assert task.example_shapes()["tokens"][0] == (16,)
    assert "tokenizer" in raised(RunError, task.predictor.encode, ["a text"])


def test_placeholder_is_copied_and_pickled():
    tokenizer = StandInTokenizer(320)
    assert copy.deepcopy(tokenizer) == tokenizer
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_tokenizer_is_read_from_the_files(task, model_bytes, vocabulary):
    assert task.tokenizer == Tokenizer.load(vocabulary)
    assert task.files == {TOKENIZER_FILE: model_bytes}
    assert task.predictor.tokenizer is task.tokenizer
    assert task.predictor.pad_id == task.tokenizer.pad_id


def test_damaged_tokenizer_is_refused_by_name(tmp_path):
    config = tiny.text_config(tmp_path)
    message = failure(MaskedLanguageModeling, config, {TOKENIZER_FILE: b"no model"})
    assert TOKENIZER_FILE in message


def test_embedding_smaller_than_the_vocabulary_is_refused(tmp_path, model_bytes, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    config = tiny.text_config(tmp_path, vocab_size=tokenizer.vocab_size)
    require_room(config, tokenizer)
    MaskedLanguageModeling(config, {TOKENIZER_FILE: model_bytes})
    config.model.vocab_size -= 1
    message = failure(MaskedLanguageModeling, config, {TOKENIZER_FILE: model_bytes})
    assert str(tokenizer.vocab_size) in message
    assert f"config.model.vocab_size is {tokenizer.vocab_size - 1}" in message


def test_padding_is_hidden_if_configured(task):
    tokenizer = task.tokenizer
    ids = [tokenizer.cls_id, 9, tokenizer.sep_id, tokenizer.pad_id]
    tokens = np.array([ids])
    assert task.padding_mask(tokens) is None
    task.config.model.mask_padding = True
    mask = task.padding_mask(tokens)
    assert mask.tolist() == [[True, True, True, False]]


def test_mean_of_features_leaves_out_padding(task):
    params = tiny.random_params(task.shapes())
    tokenizer = task.tokenizer
    tokens = np.full((2, 16), tokenizer.pad_id, np.int32)
    tokens[0, :3] = [tokenizer.cls_id, 9, tokenizer.sep_id]
    tokens[1, :9] = np.arange(9, 18)
    first, second = np.asarray(task.features(params, tokens))
    means = task.features(params, tokens, pool="mean")
    first_mean = first[:3].mean(axis=0)
    second_mean = second[:9].mean(axis=0)
    assert_allclose(means, [first_mean, second_mean], rtol=1e-5, atol=1e-6)
    with_segments = {"tokens": tokens, "segments": np.zeros_like(tokens)}
    same_means = task.features(params, with_segments, pool="mean")
    assert_array_equal(same_means, means)


def test_arrays_of_ids_are_inputs(task):
    ids = np.array([[0, 319] * 8], np.int64)
    assert task.as_inputs(ids) is ids


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((1, 16)),
        np.full((1, 16), -1),
        np.full((1, 16), 320),
        np.zeros((1, 17), int),
        np.array([["a"] * 16]),
    ],
)
def test_other_arrays_are_refused(task, array):
    assert "319" in failure(task.as_inputs, array)


def test_shorter_array_is_refused_by_a_fixed_length_model(tmp_path):
    task = MaskedLanguageModeling(tiny.text_config(tmp_path, spatial="dense"))
    short = np.zeros((1, 5), int)
    assert "[1, 5]" in failure(task.as_inputs, short)


def test_shorter_array_is_read_by_a_model_of_any_length(tmp_path):
    options = {"block": "transformer", "heads": 2, "positions": "relative"}
    task = MaskedLanguageModeling(tiny.text_config(tmp_path, **options))
    short = np.zeros((1, 5), int)
    assert task.as_inputs(short) is short


def test_texts_are_padded_to_the_longest(task):
    padded = task.predictor.padded([[7, 8, 9], [7]])
    length = 3 if task.spec().supports_length(3) else 16
    expected = np.zeros((2, length))
    expected[0, :3] = [7, 8, 9]
    expected[1, 0] = 7
    assert padded.dtype == np.int32
    assert_array_equal(padded, expected)


def test_truncation_is_noted_or_refused(task):
    note = task.predictor.note_of_cut
    assert note(16, "a text", truncate=False) == ""
    assert "first 16" in note(17, "a text", truncate=True)
    message = raised(RunError, note, 17, "a text", truncate=False)
    assert "17 tokens" in message
    assert "truncate" in message


def test_padding_refuses_a_text_that_is_too_long(task):
    ids = [5] * 17
    message = raised(RunError, task.predictor.padded, [ids])
    assert "17 tokens" in message


def test_inputs_from_python_are_texts(task):
    assert task.predictor.listed("one") == ["one"]
    assert task.predictor.listed(["one", "two"]) == ["one", "two"]


@pytest.mark.parametrize("wrong", [b"bytes", [1], ["one", None]])
def test_inputs_from_python_that_are_not_texts_are_refused(task, wrong):
    assert "expected text" in failure(task.predictor.listed, wrong)


def test_inputs_of_a_file_are_its_lines(task, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntwo\n")

    def read_lines(name: str, stream: io.BufferedReader):
        assert name == str(path)
        yield from stream.read().split()

    lines = task.predictor.inputs_of_file(str(path), read_lines)
    assert list(lines) == [b"one", b"two"]
    missing = task.predictor.inputs_of_file(str(tmp_path / "none.txt"), read_lines)
    assert "none.txt" in failure(list, missing)


def test_embeddings_follow_the_config(task):
    options = task.embedding()
    assert options["tie_embeddings"] is True
    assert options["token_types"] == 0
    assert options.keys() == set(task.around_encoder)
