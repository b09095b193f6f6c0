import io

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text.sentence_piece import cut_in_chunks
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import DataError


def foreign(**options) -> bytes:
    """A model with T5's special pieces: no bytes to fall back on, no beginning of a text, no
    mask."""
    model = io.BytesIO()
    kind = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"} | options
    texts = (line for text in embedded_text("heldout") for line in text.splitlines())
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=model,
        vocab_size=600,
        minloglevel=2,
        num_threads=2,
        **kind,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(foreign())


def test_added_pieces(tokenizer):
    assert tokenizer.vocab_size == 602
    assert (tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id) == (0, 1, 2)
    assert (tokenizer.cls_id, tokenizer.mask_id) == (600, 601)
    assert tokenizer.special_ids == (0, 1, 2, 600, 601)
    assert [tokenizer.piece(i) for i in tokenizer.special_ids] == [
        "<pad>",
        "</s>",
        "<unk>",
        "[CLS]",
        "[MASK]",
    ]
    ids = [600, *tokenizer.encode("an object"), 601, 1, 0]
    assert tokenizer.decode(ids) == "an object"


def test_pieces_of_a_model_that_has_them_are_not_added():
    names = {
        "bos_id": 3,
        "bos_piece": "[CLS]",
        "eos_piece": "[SEP]",
        "control_symbols": ["[MASK]", "<extra>"],
    }
    tokenizer = Tokenizer(foreign(**names))
    assert (tokenizer.vocab_size, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        600,
        3,
        1,
        4,
    )
    assert tokenizer.special_ids == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad_id": -1, "unk_id": 0}, r"a.model: .*\[PAD\]"),
        ({"eos_id": -1, "unk_id": 1}, r"a.model: .*\[SEP\]"),
    ],
)
def test_missing_special_token(tmp_path, options, message):
    (tmp_path / "a.model").write_bytes(foreign(**options))
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path / "a.model")


def test_masks_beside_unknown_characters(tokenizer):
    mask, unknown = tokenizer.mask_id, tokenizer.unk_id
    assert tokenizer.encode("€") == [tokenizer.encode("a €")[-2], unknown]
    assert tokenizer.encode_masked("[MASK]€[MASK] [MASK].") == [
        mask,
        unknown,
        mask,
        mask,
        *tokenizer.encode("the.")[len(tokenizer.encode("the")) :],
    ]


def test_offsets_of_unknown_characters(tokenizer):
    """Without byte fallback, unknown characters in a row are one piece."""
    text = "an  €日 object"
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text)
    (unknown,) = np.flatnonzero(ids == tokenizer.unk_id)
    assert spans[unknown].tolist() == [4, 6] and text[slice(*spans[0])] == "an"
    assert spans[unknown + 1, 0] == 7 and spans[-1, 1] == len(text)


@given(st.text(st.sampled_from("a \n\t€"), max_size=5000))
def test_chunks_lose_nothing(text):
    chunks = list(cut_in_chunks(text))
    assert "".join(chunks) == text
    assert all(len(chunk.encode()) < 4192 for chunk in chunks)


def test_t5(shared_data):
    tokenizer = Tokenizer.load(shared_data("tokenizers/t5_spiece.model"))
    assert tokenizer.vocab_size == 32_002
    assert tokenizer.special_ids == (0, 1, 2, 32_000, 32_001)
    assert (tokenizer.pad_id, tokenizer.sep_id, tokenizer.cls_id, tokenizer.mask_id) == (
        0,
        1,
        32_000,
        32_001,
    )
    ids = tokenizer.encode_masked("Paris is the [MASK] of France.")
    assert ids == [*tokenizer.encode("Paris is the"), 32_001, *tokenizer.encode("of France.")]
    assert tokenizer.decode(ids) == "Paris is the of France."
    text = "  Paris is\tthe  capital (of France)."
    found = [text[start:stop] for start, stop in tokenizer.encode_with_offsets(text)[1]]
    assert found == ["Paris", "is", "the", "capital", "(", "of", "France", ")."]
