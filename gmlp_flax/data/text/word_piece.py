"""BERT's WordPiece vocabularies (`vocab.txt`) for `Tokenizer`, encoded by the `tokenizers` library."""

import importlib
from collections.abc import Iterable, Sequence

import numpy as np

from gmlp_flax.data.text.byte_level import utf8
from gmlp_flax.errors import DataError, install

_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class WordPieces:
    """A WordPiece vocabulary: one piece per line, with the line's number as its id; `##` marks pieces inside a word.

    Text is cleaned and split as BERT does. If no piece has an upper-case letter, the vocabulary is uncased, and text is
    lower-cased and stripped of accents; names in brackets, such as [CLS] and [unused0], do not count. This is BERT's
    convention; the file itself does not state it.

    Args:
        model: the file's content.
        name: the file's name, for errors.

    Attributes: as those of FixedVocabulary.

    Raises:
        DataError: a special piece is missing, a piece occurs twice, or the library is not installed.
    """

    def __init__(self, model: bytes, name: str):
        self._pieces = [line.rstrip("\r") for line in model.decode("utf-8-sig").removesuffix("\n").split("\n")]
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        if missing := [piece for piece in _ROLES.values() if piece not in ids]:
            raise DataError(
                f"{name}: a text file is a WordPiece vocabulary, one piece per line, but of {len(ids)} pieces none is "
                f"{' or '.join(missing)}; give BERT's vocab.txt or a SentencePiece model"
            )
        if len(ids) < len(self._pieces):
            twice = next(piece for i, piece in enumerate(self._pieces) if ids[piece] != i)
            raise DataError(f"{name}: the piece {twice!r} occurs twice; copy the vocabulary again")
        self.vocab_size = len(ids)
        self.special = {role: ids[piece] for role, piece in _ROLES.items()}
        self.special_ids = tuple(sorted(self.special.values()))
        cased = any(piece != piece.lower() for piece in ids if not (piece.startswith("[") and piece.endswith("]")))
        try:
            library = importlib.import_module("tokenizers")
        except ImportError as error:
            raise DataError(f"a WordPiece vocabulary needs the tokenizers library; {install('wordpiece')}") from error
        self._tokenizer = library.Tokenizer(library.models.WordPiece(ids, unk_token=_ROLES["unk"]))
        self._tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=not cased)
        self._tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
        self._tokenizer.decoder = library.decoders.WordPiece(prefix="##", cleanup=True)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(utf8(text).decode()).ids

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        texts = [utf8(text).decode() for text in texts]
        # The library uses one thread or all of them.
        encodings = map(self._tokenizer.encode, texts) if threads == 1 else self._tokenizer.encode_batch_fast(texts)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        encoding = self._tokenizer.encode(utf8(text).decode())
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([token for token in ids if token not in self.special_ids])

    def piece(self, token: int) -> str:
        piece = self._pieces[token]
        return piece.removeprefix("##") if piece.startswith("##") or token in self.special_ids else f" {piece}"
