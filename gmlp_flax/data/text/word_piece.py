"""WordPiece for `Tokenizer`: BERT's `vocab.txt` and `tokenizer.json`, encoded by the `tokenizers`
library."""

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gmlp_flax.data.text.fixed_vocabulary import Encoding, make_encoding, utf8
from gmlp_flax.errors import DataError, decode_errors, require
from gmlp_flax.io import json_files

_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPECIAL = tuple(_ROLES.values())
_MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
PREFIX = "##"
Document = dict[str, Any]  # a tokenizer.json, or an object in it
_BYTE_ORDER_MARK = "\ufeff"

KEYS = {  # as in Hugging Face's tokenizer_config.json
    "do_lower_case": "whether a WordPiece vocabulary lower-cases text; auto: as "
    "tokenizer_config.json or tokenizer.json beside it says",
    "strip_accents": "whether it also takes accents off letters, as in BERT's uncased models; "
    "auto: the same",
}
VALUES = ("auto", "True", "False", "true", "false")


class Cases(NamedTuple):
    """Whether text is lower-cased, and whether accents are taken off letters; named as KEYS."""

    do_lower_case: bool
    strip_accents: bool


class WordPieces:
    """A WordPiece vocabulary, or a tokenizer of the `tokenizers` library that has one; `##` marks
    pieces inside a word.

    A vocabulary has one piece per line, with the line's number as its id. Text is cleaned and split
    as BERT does. The file does not say whether text is lower-cased. Read alone, it lower-cases text
    and strips accents if no piece has an upper-case letter, other than names in brackets such as
    [CLS]; else it leaves text as it is. Before training, `casing.decide` settles the question, and
    writes a `tokenizer.json` if the answer differs from this reading.

    A `tokenizer.json` says everything: normalization, how text is split, added tokens. Its special
    tokens are the five of BERT, and are not recognized in texts.

    Args:
        model: the file's content.
        name: the file's name, for errors.

    Attributes: as those of fixed_vocabulary.Bytes.
        document: what the library builds the tokenizer from, in the form of `tokenizer.json`.
        pieces: the text of each piece.
        is_json: whether the file is a tokenizer.json.
        name: the argument.

    Raises:
        DataError: a special piece is missing, a piece occurs twice, or the tokenizer is of another
            kind than WordPiece.
        RunError: the tokenizers library is not installed.
    """

    def __init__(self, model: bytes, name: str):
        text = model.decode("utf-8-sig")
        self.name = name
        self.is_json = is_json(text)
        if self.is_json:
            self.document = _read_json(model, name)
        else:
            self.document = _read_vocabulary(text, name)
        ids = _ids(self.document)
        _require_special(ids, name)
        require_consecutive(ids, name)
        self.pieces = sorted(ids, key=ids.__getitem__)
        self.vocab_size = len(ids)
        self.special = {role: ids[piece] for role, piece in _ROLES.items()}
        special_ids = sorted(self.special.values())
        self.special_ids = tuple(special_ids)
        self._tokenizer = _build(self.document, name)

    @property
    def cases(self) -> Cases | None:
        """What becomes of capitals and accents; None if the normalizer is not BERT's."""
        normalizer = self.document["normalizer"] or {}
        if normalizer.get("type") != "BertNormalizer":
            return None
        lower = normalizer.get("lowercase", True)
        strip = normalizer.get("strip_accents")
        if strip is None:
            strip = lower
        return Cases(lower, strip)

    def model_pieces(self) -> dict[str, int]:
        """Piece -> id, without the added tokens of a tokenizer.json."""
        model = self.document["model"]
        return model["vocab"]

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        """See Tokenizer.encode_batch."""
        valid = [_without_surrogates(text) for text in texts]
        if threads == 1:  # the library uses one thread or all of them
            encodings = [self._tokenizer.encode(text) for text in valid]
        else:
            encodings = self._tokenizer.encode_batch_fast(valid)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> Encoding:
        """See Tokenizer.encode_with_offsets."""
        valid = _without_surrogates(text)
        encoded = self._tokenizer.encode(valid)
        return make_encoding(encoded.ids, encoded.offsets)

    def decode(self, ids: Iterable[int]) -> str:
        """See Tokenizer.decode."""
        text_ids = [token for token in ids if token not in self.special_ids]
        return self._tokenizer.decode(text_ids)

    def to_json(self) -> bytes:
        """The `tokenizer.json` of Hugging Face's libraries, with BERT's special tokens and [CLS] a
        [SEP] b [SEP]."""
        library = importlib.import_module("tokenizers")
        description = self._tokenizer.to_str()
        copy = library.Tokenizer.from_str(description)
        copy.add_special_tokens(list(_SPECIAL))
        sep = (_ROLES["sep"], self.special["sep"])
        cls = (_ROLES["cls"], self.special["cls"])
        copy.post_processor = library.processors.BertProcessing(sep, cls)
        text = copy.to_str(pretty=True)
        return text.encode()

    def piece(self, token: int) -> str:
        """See Tokenizer.piece."""
        piece = self.pieces[token]
        if token in self.special_ids:
            return piece
        if piece.startswith(PREFIX):
            return piece.removeprefix(PREFIX)
        return f" {piece}"


def _build(document: Document, name: str) -> Any:
    """The tokenizer of the `tokenizers` library; raises DataError if the library refuses the
    document."""
    library = require("tokenizers", "a WordPiece vocabulary", "wordpiece")
    what = f"{name}: not a tokenizer that the tokenizers library reads"
    with decode_errors(what, "copy it again"):
        text = json.dumps(document)
        tokenizer = library.Tokenizer.from_str(text)
    tokenizer.decoder = library.decoders.WordPiece(prefix=PREFIX, cleanup=True)
    return tokenizer


def _without_surrogates(text: str) -> str:
    content = utf8(text)
    return content.decode()


def is_json(text: str) -> bool:
    """Whether a file is a tokenizer.json, and no list of pieces."""
    stripped = text.strip()
    return stripped.startswith("{") and stripped.endswith("}")


def _ids(document: Document) -> dict[str, int]:
    """The id of each piece, added tokens included."""
    model = document["model"]
    ids = dict(model["vocab"])
    for token in document["added_tokens"]:
        piece = token["content"]
        ids[piece] = token["id"]
    return ids


def _require_special(ids: Mapping[str, int], name: str) -> None:
    missing = [piece for piece in _SPECIAL if piece not in ids]
    if missing:
        count = len(ids)
        pieces = " or ".join(missing)
        raise DataError(
            f"{name}: a text file is a WordPiece vocabulary, one piece per line, but none of its "
            f"{count} pieces is {pieces}; give BERT's vocab.txt or a SentencePiece model"
        )


def require_consecutive(ids: Mapping[str, int], name: str) -> None:
    """Raises DataError if the ids of pieces are not those from 0 on."""
    count = len(ids)
    expected = list(range(count))
    if sorted(ids.values()) != expected:
        last = count - 1
        raise DataError(f"{name}: the ids of its {count} pieces are not 0 to {last}; copy it again")


def in_brackets(piece: str) -> bool:
    """Whether a piece is a name such as [CLS]."""
    return piece.startswith("[") and piece.endswith("]")


def kind_of(document: Document) -> str:
    """The kind of a tokenizer.json's model, which old files do not name."""
    model = document.get("model")
    if not isinstance(model, dict):
        return "no model"
    if "type" in model:
        return str(model["type"])
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, list):
        return "Unigram"
    if "merges" in model:
        return "BPE"
    return "WordPiece"


def _read_json(content: bytes, name: str) -> Document:
    """What decides the tokens in a tokenizer.json."""
    document = json_files.parse(content, name, dict)
    _require_word_piece(document, name)
    model = _MODEL | document["model"]
    for key in ("unk_token", "continuing_subword_prefix"):
        value = model[key]
        expected = _MODEL[key]
        if value != expected:
            raise DataError(f"{name}: {key} is {value!r}: expected {expected!r}")
    for part in ("normalizer", "pre_tokenizer"):
        value = document.get(part)
        if not isinstance(value, dict | None):
            raise DataError(f"{name}: damaged: its {part} is not an object; copy it again")
    settings = {key: model[key] for key in _MODEL}
    with decode_errors(f"{name}: damaged", "copy it again"):
        by_id = sorted(model["vocab"].items(), key=lambda pair: _require_id(pair[1]))
        added_tokens = _added_tokens(document)
    return _document(
        model={**settings, "vocab": dict(by_id)},
        normalizer=document.get("normalizer"),
        pre_tokenizer=document.get("pre_tokenizer"),
        added_tokens=added_tokens,
    )


def _require_word_piece(document: Document, name: str) -> None:
    kind = kind_of(document)
    if kind != "WordPiece":
        raise DataError(
            f"{name}: a tokenizer.json with {kind}: expected WordPiece or BPE, as BERT's or "
            "RoBERTa's tokenizer.json, vocab.txt, or a SentencePiece model (spiece.model, "
            "tokenizer.model)"
        )


def _added_tokens(document: Document) -> list[Document]:
    """The added tokens of a tokenizer.json, without the special ones; raises an error if one has no
    text or no id."""
    added = []
    for token in document.get("added_tokens") or []:
        text = token["content"]
        if not isinstance(text, str):
            raise TypeError(f"an added token is {text!r}")
        _require_id(token["id"])
        if text not in _SPECIAL:
            copy = dict(token)
            added.append(copy)
    return added


def _require_id(value: Any) -> int:
    """The value, if it is a whole number; else raises an error."""
    if type(value) is not int:
        raise TypeError(f"an id is {value!r}")
    return value


def _read_vocabulary(text: str, name: str) -> Document:
    """A vocab.txt without other files, as the copies in run folders are read."""
    pieces = read_lines(text)
    repeated = _first_repeated(pieces)
    is_vocabulary = set(pieces).issuperset(_SPECIAL)
    if is_vocabulary and repeated is not None:
        raise DataError(f"{name}: the piece {repeated!r} occurs twice; copy the vocabulary again")
    return plain_document(pieces)


def _first_repeated(pieces: Iterable[str]) -> str | None:
    known: set[str] = set()
    for piece in pieces:
        if piece in known:
            return piece
        known.add(piece)
    return None


def read_lines(text: str) -> list[str]:
    """The pieces of a vocab.txt, as the tokenizers library reads them: without the blanks at the
    ends of lines. A byte-order mark, which concatenated files may have inside, is not part of a
    piece."""
    pieces = []
    without_last_end = text.removesuffix("\n")
    for line in without_last_end.split("\n"):
        without_mark = line.lstrip(_BYTE_ORDER_MARK)
        piece = without_mark.rstrip()
        pieces.append(piece)
    return pieces


def plain_document(pieces: Sequence[str]) -> Document:
    """The tokenizer of a vocabulary about which nothing else is known."""
    is_cased = any(map(_has_capitals, pieces))
    is_uncased = not is_cased
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": is_uncased,
        "lowercase": is_uncased,
    }
    ids = {piece: number for number, piece in enumerate(pieces)}
    return _document(
        model={**_MODEL, "vocab": ids},
        normalizer=normalizer,
        pre_tokenizer={"type": "BertPreTokenizer"},
        added_tokens=[],
    )


def _has_capitals(piece: str) -> bool:
    if in_brackets(piece):
        return False
    return piece != piece.lower()


def _document(
    model: Document, normalizer: Any, pre_tokenizer: Any, added_tokens: list[Document]
) -> Document:
    """A tokenizer.json of these parts, which decide the tokens."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "decoder": None,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "added_tokens": added_tokens,
        "model": model,
    }


def as_json(document: Document) -> bytes:
    """A document as a file, with its keys in order."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True)
    line = f"{text}\n"
    return line.encode()
