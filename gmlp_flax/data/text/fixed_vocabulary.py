"""Fixed vocabularies for `Tokenizer`, with nothing to train: the 256 bytes, and the symbols of
ListOps."""

import abc
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gmlp_flax.data import listops
from gmlp_flax.errors import DataError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_FIRST = len(SPECIAL_PIECES)  # the id of byte 0, or of the first symbol
_WORD = re.compile(r"\S+")


def utf8(text: str) -> bytes:
    """The text as UTF-8, with `?` for lone surrogates, which JSON allows but UTF-8 does not."""
    return text.encode("utf-8", "replace")


def is_blank(character: str) -> bool:
    """Whether a character is white space or has no width: models turn these into white space or
    drop them."""
    if character.isspace():
        return True
    category = unicodedata.category(character)
    return category in ("Cc", "Cf")


def skip_blanks(text: str, start: int, stop: int) -> int:
    """The first position from `start` on that holds no blank, or `stop`."""
    while start < stop and is_blank(text[start]):
        start += 1
    return start


class Encoding(NamedTuple):
    """The tokens of a text; see Tokenizer.encode_with_offsets.

    Attributes:
        ids: int32 [tokens].
        spans: int32 [tokens, 2], where each token starts and stops in the text, in characters.
    """

    ids: np.ndarray
    spans: np.ndarray


def make_encoding(ids: ArrayLike, spans: Sequence[tuple[int, int]]) -> Encoding:
    """An Encoding of plain numbers."""
    id_array = np.asarray(ids, np.int32)
    span_array = np.array(spans, np.int32)
    span_rows = span_array.reshape(-1, 2)
    return Encoding(id_array, span_rows)


class FixedVocabulary(abc.ABC):
    """The special pieces, then others, numbered in order.

    Args:
        others: the other pieces, as `piece` shows them.

    Attributes:
        pieces: all pieces.
        vocab_size: their number.
        special: {"pad", "unk", "cls", "sep", "mask"} -> id.
        special_ids: these ids in order.
    """

    def __init__(self, others: Iterable[str]):
        self.pieces = (*SPECIAL_PIECES, *others)
        self.vocab_size = len(self.pieces)
        self.special_ids = tuple(range(_FIRST))
        self.special: dict[str, int] = {}
        for number, piece in enumerate(SPECIAL_PIECES):
            name = piece.strip("[]")
            role = name.lower()
            self.special[role] = number

    @abc.abstractmethod
    def ids(self, text: str) -> np.ndarray:
        """The ids of a text, without special pieces: int32 [tokens]."""

    @abc.abstractmethod
    def encode_with_offsets(self, text: str) -> Encoding:
        """See Tokenizer.encode_with_offsets."""

    @abc.abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """See Tokenizer.decode."""

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        """See Tokenizer.encode_batch."""
        return [self.ids(text) for text in texts]

    def piece(self, token: int) -> str:
        """See Tokenizer.piece."""
        return self.pieces[token]


class Bytes(FixedVocabulary):
    """UTF-8 without any normalization: byte b has the id 5 + b, after [PAD] [UNK] [CLS] [SEP]
    [MASK].

    A mask stands for one byte. Ids decode to the text of their bytes, with U+FFFD for bytes that
    are not UTF-8: a model may draw such bytes.
    """

    def __init__(self) -> None:
        pieces = map(_show_byte, range(256))
        super().__init__(pieces)

    def ids(self, text: str) -> np.ndarray:
        """See `FixedVocabulary`: an id for each byte."""
        content = utf8(text)
        values = np.frombuffer(content, np.uint8)
        return values.astype(np.int32) + _FIRST

    def encode_with_offsets(self, text: str) -> Encoding:
        """See `FixedVocabulary`: all bytes of a character have its span, which is empty for a
        blank."""
        spans = []
        for position, character in enumerate(text):
            stop = position + 1
            start = stop if is_blank(character) else position
            span = (start, stop)
            content = utf8(character)
            spans += [span] * len(content)
        ids = self.ids(text)
        return make_encoding(ids, spans)

    def decode(self, ids: Iterable[int]) -> str:
        content = bytearray()
        for token in ids:
            if token >= _FIRST:
                byte = token - _FIRST
                content.append(byte)
        return content.decode("utf-8", "replace")


def _show_byte(byte: int) -> str:
    is_printable = 0x20 <= byte < 0x7F
    if is_printable:
        return chr(byte)
    return f"<0x{byte:02X}>"


class Symbols(FixedVocabulary):
    """ListOps's symbols, separated by white space: they have the ids 5 to 19, after [PAD] [UNK]
    [CLS] [SEP] [MASK].

    Round brackets, which group arguments in the published files, are left out, as in the published
    reader.
    """

    def __init__(self) -> None:
        super().__init__(listops.SYMBOLS)

    def ids(self, text: str) -> np.ndarray:
        """See FixedVocabulary; raises DataError for a word that is not a symbol."""
        ids = []
        for word in text.split():
            if word in listops.BRACES:
                continue
            if word not in _SYMBOL_IDS:
                known = " ".join(listops.SYMBOLS)
                raise DataError(f"the symbol {word[:40]!r}; expected one of {known}")
            symbol_id = _SYMBOL_IDS[word]
            ids.append(symbol_id)
        return np.array(ids, np.int32)

    def encode_with_offsets(self, text: str) -> Encoding:
        spans = []
        for match in _WORD.finditer(text):
            word = match.group()
            if word not in listops.BRACES:
                span = match.span()
                spans.append(span)
        ids = self.ids(text)
        return make_encoding(ids, spans)

    def decode(self, ids: Iterable[int]) -> str:
        words = [self.pieces[token] for token in ids if token >= _FIRST]
        return " ".join(words)


_SYMBOL_IDS = {symbol: number for number, symbol in enumerate(listops.SYMBOLS, start=_FIRST)}

# Names that are given in place of a file; in a run folder, the vocabulary's file is a line with its
# name.
NAMED: dict[str, type[Bytes | Symbols]] = {
    "bytes": Bytes,
    "listops": Symbols,
}
