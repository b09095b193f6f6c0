"""Fixed vocabularies for `Tokenizer`, with nothing to train: the special pieces and, here, the 256 bytes."""

import abc
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL = {piece.strip("[]").lower(): i for i, piece in enumerate(SPECIAL_PIECES)}  # {"pad": 0, ...}

NAME = "bytes"  # in the place of a file's name
MODEL = b"bytes\n"  # the content of the file that stands for it in run folders

_FIRST = len(SPECIAL_PIECES)  # the id of byte 0


def utf8(text: str) -> bytes:
    """The text as UTF-8, with `?` for lone surrogates, which JSON allows but UTF-8 does not."""
    return text.encode("utf-8", "replace")


def is_blank(character: str) -> bool:
    """Whether a character is white space or has no width: models turn these into white space or drop them."""
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf")


class FixedVocabulary(abc.ABC):
    """The special pieces, then others, numbered in order.

    Args:
        pieces: the others, as `piece` shows them.

    Attributes:
        vocab_size: the number of all pieces.
        special: {"pad", "unk", "cls", "sep", "mask"} -> id.
        special_ids: these ids in order.
    """

    def __init__(self, pieces: Sequence[str]):
        self.pieces = (*SPECIAL_PIECES, *pieces)
        self.vocab_size = len(self.pieces)
        self.special, self.special_ids = dict(SPECIAL), tuple(SPECIAL.values())

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special pieces."""

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        return [np.array(self.encode(text), np.int32) for text in texts]

    def piece(self, token: int) -> str:
        return self.pieces[token]


class Bytes(FixedVocabulary):
    """UTF-8 without any normalisation: byte b has the id 5 + b, after [PAD] [UNK] [CLS] [SEP] [MASK].

    A mask stands for one byte. Ids decode to the text of their bytes, with U+FFFD for bytes that are no UTF-8: a model
    may draw such bytes.
    """

    def __init__(self) -> None:
        super().__init__([chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>" for byte in range(256)])

    def encode(self, text: str) -> list[int]:
        return self._ids(text).tolist()

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        return [self._ids(text) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        stops = np.arange(1, len(text) + 1, dtype=np.int32)
        starts = stops - np.array([not is_blank(character) for character in text], np.int32)
        sizes = np.array([len(utf8(character)) for character in text], np.int32)
        return self._ids(text), np.repeat(np.stack([starts, stops], axis=1), sizes, axis=0)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i - _FIRST for i in ids if i >= _FIRST).decode("utf-8", "replace")

    def _ids(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text), np.uint8).astype(np.int32) + _FIRST
