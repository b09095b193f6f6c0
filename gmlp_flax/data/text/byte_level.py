"""Text as its bytes, for `Tokenizer`: a vocabulary of 256 and the special pieces, with nothing to train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gmlp_flax.data.text.sentence_piece import SPECIAL, SPECIAL_PIECES, is_blank, utf8

NAME = "bytes"  # in the place of a file's name
MODEL = b"bytes\n"  # the content of the file that stands for it in run folders

_FIRST = len(SPECIAL_PIECES)  # the id of byte 0


class Bytes:
    """UTF-8 without any normalisation: byte b has the id 5 + b, after [PAD] [UNK] [CLS] [SEP] [MASK].

    Ids decode to the text of their bytes. Bytes that are no UTF-8 become U+FFFD: a model may draw such bytes.

    Attributes:
        vocab_size: 261.
        special: {"pad", "unk", "cls", "sep", "mask"} -> id.
        special_ids: these ids in order.
    """

    def __init__(self) -> None:
        self.special = dict(SPECIAL)
        self.special_ids = tuple(self.special.values())
        self.vocab_size = _FIRST + 256

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

    def encode_after(self, text: str) -> list[int]:
        """`encode`: nothing is added to the beginning of a text. A mask stands for one byte."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(i - _FIRST for i in ids if i >= _FIRST).decode("utf-8", "replace")

    def piece(self, token: int) -> str:
        byte = token - _FIRST
        if byte < 0:
            return SPECIAL_PIECES[token]
        return chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>"

    def _ids(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text), np.uint8).astype(np.int32) + _FIRST
