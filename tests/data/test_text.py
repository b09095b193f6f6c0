import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.text import Windows, cached_tokenizer, cached_tokens, corpus_fingerprint, tokenize
from gmlp_flax.data.tokenizer import Tokenizer

DOCUMENTS = [f"Document {i} says: the quick brown fox jumps over {i * i} lazy dogs." for i in range(300)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(DOCUMENTS, 320)


def test_tokenize(tokenizer):
    tokens = tokenize(iter(DOCUMENTS), tokenizer)
    expected = [token for text in DOCUMENTS for token in (*tokenizer.encode(text), tokenizer.sep_id)]
    assert tokens.dtype == np.uint16 and tokens.tolist() == expected
    assert tokenize([], tokenizer).shape == (0,)


@given(st.integers(3, 20), st.integers(0, 60), st.data())
def test_windows_lose_and_double_nothing(tokenizer, length, extra, data):
    tokens = np.array(data.draw(st.lists(st.integers(5, 99), min_size=length - 2 + extra, max_size=length - 2 + extra)))
    windows = Windows(tokens, length, tokenizer)
    items = [windows[i] for i in range(len(windows))]
    rebuilt = []
    for i, item in enumerate(items):
        window = item["tokens"]
        assert window.shape == (length,) and window.dtype == np.int32 and item["index"] == i
        end = window.tolist().index(tokenizer.sep_id)
        assert window[0] == tokenizer.cls_id
        assert (window[end + 1 :] == tokenizer.pad_id).all()
        assert end == length - 1 or i == len(items) - 1
        rebuilt += window[1:end].tolist()
    assert rebuilt == tokens.tolist()


def test_window_out_of_range(tokenizer):
    windows = Windows(np.arange(10), 7, tokenizer)
    assert repr(windows) == "Windows(tokens=10, length=7)" and len(windows) == 2
    with pytest.raises(IndexError, match="window 2 of 2"):
        windows[2]


def test_corpus_too_short(tokenizer):
    with pytest.raises(DataError, match="has 9 tokens, a sequence of length 12 needs 10; lower the length to 11"):
        Windows(np.arange(9), 12, tokenizer)
    with pytest.raises(DataError, match="length=2 leaves no room"):
        Windows(np.arange(9), 2, tokenizer)


def test_mapped_windows_are_pickled_by_file_name(tokenizer, tmp_path):
    tokens = cached_tokens(lambda: DOCUMENTS, tokenizer, tmp_path)
    windows = Windows(tokens, 16, tokenizer)
    data = pickle.dumps(windows)
    assert len(data) < 1000 < tokens.nbytes
    assert [pickle.loads(data)[i]["tokens"].tolist() for i in (0, 9)] == [windows[i]["tokens"].tolist() for i in (0, 9)]
    part = Windows(tokens[100:], 16, tokenizer)
    assert pickle.loads(pickle.dumps(part))[0]["tokens"].tolist() == part[0]["tokens"].tolist()


def test_fingerprint_sees_where_documents_end():
    assert corpus_fingerprint(["ab", "c"]) != corpus_fingerprint(["a", "bc"]) != corpus_fingerprint(["abc"])


def test_cached_tokenizer(tokenizer, tmp_path):
    passes = []

    def documents():
        passes.append(1)
        return iter(DOCUMENTS)

    assert cached_tokenizer(documents, 320, tmp_path) == tokenizer
    assert cached_tokenizer(documents, 320, tmp_path) == tokenizer
    assert len(passes) == 3
    (file,) = tmp_path.glob("tokenizer-*.model")
    file.write_bytes(file.read_bytes()[:-9])
    assert cached_tokenizer(documents, 320, tmp_path) == tokenizer
    assert cached_tokenizer(documents, 310, tmp_path).vocab_size == 310
    assert len(list(tmp_path.glob("tokenizer-*.model"))) == 2


def test_cached_tokens(tokenizer, tmp_path):
    expected = tokenize(DOCUMENTS, tokenizer).tolist()
    for _ in range(2):
        tokens = cached_tokens(lambda: DOCUMENTS, tokenizer, tmp_path)
        assert isinstance(tokens, np.memmap) and tokens.tolist() == expected
    (file,) = tmp_path.glob("tokens-*.npy")
    file.write_bytes(file.read_bytes()[:-9])
    assert cached_tokens(lambda: DOCUMENTS, tokenizer, tmp_path).tolist() == expected
    cached_tokens(lambda: DOCUMENTS[1:], tokenizer, tmp_path)
    assert len(list(tmp_path.glob("tokens-*.npy"))) == 2


def test_unwritable_cache(tokenizer, tmp_path):
    (tmp_path / "file").touch()
    for cached, argument in ((cached_tokenizer, 320), (cached_tokens, tokenizer)):
        with pytest.raises(DataError, match="cannot write '.*file/.*give a folder that can be written to"):
            cached(lambda: DOCUMENTS, argument, tmp_path / "file")
