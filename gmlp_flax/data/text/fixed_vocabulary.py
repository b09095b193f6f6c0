"""Fixed vocabularies for `Tokenizer`, with nothing to train: the 256 bytes, and the symbols of
ListOps."""

import abc
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

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
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")


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
            self.special[piece.strip("[]").lower()] = number

    @abc.abstractmethod
    def ids(self, text: str) -> np.ndarray:
        """The ids of a text, without special pieces: int32 [tokens]."""

    @abc.abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
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
    """UTF-8 without any normalisation: byte b has the id 5 + b, after [PAD] [UNK] [CLS] [SEP]
    [MASK].

    A mask stands for one byte. Ids decode to the text of their bytes, with U+FFFD for bytes that
    are no UTF-8: a model may draw such bytes.
    """

    def __init__(self) -> None:
        super().__init__(_show_byte(byte) for byte in range(256))

    def ids(self, text: str) -> np.ndarray:
        values = np.frombuffer(utf8(text), np.uint8)
        return values.astype(np.int32) + _FIRST

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        spans = []
        for position, character in enumerate(text):
            start = position + 1 if is_blank(character) else position
            for _ in utf8(character):
                spans.append((start, position + 1))
        return self.ids(text), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        content = bytes(token - _FIRST for token in ids if token >= _FIRST)
        return content.decode("utf-8", "replace")


def _show_byte(byte: int) -> str:
    is_printable = 0x20 <= byte < 0x7F
    return chr(byte) if is_printable else f"<0x{byte:02X}>"


class Symbols(FixedVocabulary):
    """Words with white space between: ListOps's symbols have the ids 5 to 19, after [PAD] [UNK]
    [CLS] [SEP] [MASK].

    Round brackets, which group arguments in the published files, are left out, as the published
    reader does.
    """

    def __init__(self) -> None:
        super().__init__(listops.SYMBOLS)

    def ids(self, text: str) -> np.ndarray:
        """See FixedVocabulary; raises DataError for a word that is no symbol."""
        words = [word for word in text.split() if word not in listops.BRACES]
        try:
            ids = [_SYMBOL_IDS[word] for word in words]
        except KeyError as error:
            word = error.args[0]
            known = " ".join(listops.SYMBOLS)
            raise DataError(f"the symbol {word[:40]!r}; expected one of {known}") from None
        return np.array(ids, np.int32)

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        spans = []
        for match in _WORD.finditer(text):
            if match.group() not in listops.BRACES:
                spans.append(match.span())
        return self.ids(text), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.pieces[token] for token in ids if token >= _FIRST)


_SYMBOL_IDS = {symbol: number for number, symbol in enumerate(listops.SYMBOLS, start=_FIRST)}

# Names in the place of a file's; the file that stands for a vocabulary in run folders is a line
# with its name.
NAMED: dict[str, type[Bytes | Symbols]] = {"bytes": Bytes, "listops": Symbols}
