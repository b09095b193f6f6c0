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
        self.special = {piece.strip("[]").lower(): i for i, piece in enumerate(SPECIAL_PIECES)}
        self.special_ids = tuple(self.special.values())

    @abc.abstractmethod
    def ids(self, text: str) -> np.ndarray:
        """The ids of a text, without special pieces: int32 [tokens]."""

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        return [*map(self.ids, texts)]

    def piece(self, token: int) -> str:
        return self.pieces[token]


class Bytes(FixedVocabulary):
    """UTF-8 without any normalisation: byte b has the id 5 + b, after [PAD] [UNK] [CLS] [SEP]
    [MASK].

    A mask stands for one byte. Ids decode to the text of their bytes, with U+FFFD for bytes that
    are no UTF-8: a model may draw such bytes.
    """

    def __init__(self) -> None:
        super().__init__(
            chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>" for byte in range(256)
        )

    def ids(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text), np.uint8).astype(np.int32) + _FIRST

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        stops = np.arange(1, len(text) + 1, dtype=np.int32)
        starts = stops - np.array([not is_blank(character) for character in text], np.int32)
        sizes = np.array([len(utf8(character)) for character in text], np.int32)
        return self.ids(text), np.repeat(np.stack([starts, stops], axis=1), sizes, axis=0)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i - _FIRST for i in ids if i >= _FIRST).decode("utf-8", "replace")


class Symbols(FixedVocabulary):
    """Words with white space between: ListOps's symbols have the ids 5 to 19, after [PAD] [UNK]
    [CLS] [SEP] [MASK].

    Round brackets, which group arguments in the published files, are left out, as the published
    reader does.
    """

    def __init__(self) -> None:
        super().__init__(listops.SYMBOLS)
        self._numbers = {word: _FIRST + i for i, word in enumerate(listops.SYMBOLS)}

    def ids(self, text: str) -> np.ndarray:
        """See FixedVocabulary; raises DataError for a word that is no symbol."""
        try:
            return np.array(
                [self._numbers[word] for word in text.split() if word not in listops.BRACES],
                np.int32,
            )
        except KeyError as error:
            known = " ".join(listops.SYMBOLS)
            raise DataError(f"the symbol {error.args[0][:40]!r}; expected one of {known}") from None

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        spans = [word.span() for word in re.finditer(r"\S+", text) if word[0] not in listops.BRACES]
        return self.ids(text), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.pieces[i] for i in ids if i >= _FIRST)


# Names in the place of a file's; the file that stands for a vocabulary in run folders is a line
# with its name.
NAMED: dict[str, type[Bytes | Symbols]] = {"bytes": Bytes, "listops": Symbols}
