"""Documents are encoded in batches of pieces."""

import io
import itertools
import random

import numpy as np
import pytest
import sentencepiece

from gmlp_flax.data.text import encoding, sentence_piece
from gmlp_flax.data.text.encoding import encode_documents
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.text import byte_pair_files
from tests.data.text.preparing import TEXTS, stream, tokenizer


def encode(documents: list[str], threads: int = 1) -> tuple[list[int], int]:
    """The ids of all documents, and their number."""
    tokens: list[int] = []
    count = 0
    for batch, ended, _ in encode_documents(documents, tokenizer(), threads):
        assert batch.dtype == np.int32
        tokens += batch.tolist()
        count += ended
    return tokens, count


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("pieces", [1, 3, 10**6])
def test_ids_do_not_depend_on_batches_and_threads(monkeypatch, threads, pieces):
    monkeypatch.setattr(encoding, "BATCH", pieces)
    for texts in (TEXTS, [], ["", "the fox", ""]):
        tokens, count = encode(texts, threads)
        assert tokens == stream(texts)
        assert count == len(texts)


@pytest.mark.parametrize("piece", [30, 57])
def test_long_documents_are_cut_between_tokens(monkeypatch, piece):
    monkeypatch.setattr(encoding, "PIECE", piece)
    texts = ["the quick brown\nfox  jumps over \n lazy dogs " * 20, "the fox"]
    tokens, _ = encode(texts)
    assert tokens == stream(texts)


WORDS = "the old man looked at the sea and went home over hills of night".split()


def llama_like():
    """A SentencePiece model that begins each text with a blank and keeps all others."""
    model = io.BytesIO()
    options = sentence_piece.TRAINING | sentence_piece.KEEPING_WHITE_SPACE
    options["add_dummy_prefix"] = True
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([" ".join(WORDS)] * 20),
        model_writer=model,
        vocab_size=320,
        minloglevel=2,
        **options,
    )
    return Tokenizer(model.getvalue())


def of_json(tokenizer):
    """A tokenizer of the `tokenizers` library."""
    return Tokenizer(tokenizer.to_str().encode())


def kept_white_space():
    return Tokenizer.train([" ".join(WORDS)] * 20, 320, keep_white_space=True)


TOKENIZERS = {
    "ours": tokenizer,
    "ours, white space kept": kept_white_space,
    "SentencePiece like Llama 2": llama_like,
    "JSON like Llama 2": lambda: of_json(byte_pair_files.over_characters(WORDS)),
    "JSON over bytes": lambda: of_json(byte_pair_files.over_bytes(WORDS)),
    "JSON with a prefix": lambda: of_json(byte_pair_files.over_bytes(WORDS, prefix=True)),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_blank_is_added_where_a_document_is_cut(monkeypatch, kind):
    """The ids of pieces are those of the whole document, whatever is between words, and where
    nothing is, they decode to the same text."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    monkeypatch.setattr(encoding, "PIECE", 40)
    used = TOKENIZERS[kind]()
    rng = random.Random(0)
    words = rng.choices(WORDS, k=200)
    gaps = rng.choices([" "] * 8 + ["\n", "  "], k=200)
    spaced = "".join(itertools.chain.from_iterable(zip(words, gaps, strict=True)))
    [batch] = encode_documents([spaced], used)
    assert batch.ids.tolist() == [*used.encode(spaced), used.sep_id]
    assert batch.text_bytes == len(spaced)
    lines = "\n".join(words)
    [batch] = encode_documents([lines], used)
    assert used.decode(batch.ids) == used.decode(used.encode(lines))
    unspaced = "".join(words)
    [batch] = encode_documents([unspaced], used)
    assert used.decode(batch.ids).strip() == unspaced
    assert batch.text_bytes == len(unspaced)


@pytest.mark.parametrize("piece", [7, 4096])
def test_bytes_are_counted_before_normalization(monkeypatch, piece):
    monkeypatch.setattr(encoding, "PIECE", piece)
    texts = ["the  quick\n\n\tfox ﬁ \ud800", "日本  "]
    batches = list(encode_documents(texts, tokenizer()))
    assert sum(batch.text_bytes for batch in batches) == 22 + 8
    assert sum(batch.documents for batch in batches) == 2


def test_words_longer_than_a_piece_are_cut(monkeypatch):
    monkeypatch.setattr(encoding, "PIECE", 30)
    first = tokenizer().encode("x" * 30)
    further = tokenizer().encode_after("x" * 30) + tokenizer().encode_after("x" * 7)
    tokens, _ = encode(["x" * 67])
    assert tokens == [*first, *further, tokenizer().sep_id]
    assert tokenizer().decode(tokens) == "x" * 67
