"""Text as words of a small fixed vocabulary, such as the symbols of ListOps, for `Tokenizer`: nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gmlp_flax.data.listops import trees
from gmlp_flax.data.text.sentence_piece import SPECIAL, SPECIAL_PIECES
from gmlp_flax.errors import DataError

NAME = "listops"  # in the place of a file's name
MODEL = b"listops\n"  # the content of the file that stands for it in run folders


class Symbols:
    """Words with white space between: ListOps's symbols have the ids 5 to 19, after [PAD] [UNK] [CLS] [SEP] [MASK].

    Round brackets, which group arguments in the published files, are left out, as the published reader does.

    Attributes:
        vocab_size: 20.
        special: {"pad", "unk", "cls", "sep", "mask"} -> id.
        special_ids: these ids in order.
    """

    def __init__(self) -> None:
        self.special = dict(SPECIAL)
        self.special_ids = tuple(self.special.values())
        self._pieces = (*SPECIAL_PIECES, *trees.SYMBOLS)
        self._numbers = {word: i for i, word in enumerate(self._pieces) if i >= len(SPECIAL_PIECES)}
        self.vocab_size = len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Raises DataError for a word that is no symbol."""
        words = [word for word in text.split() if word not in trees.BRACES]
        try:
            return [self._numbers[word] for word in words]
        except KeyError as error:
            raise DataError(trees.unknown(str(error.args[0]))) from None

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        return [np.array(self.encode(text), np.int32) for text in texts]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        spans, place = [], 0
        for word in text.split():
            start = text.index(word, place)
            place = start + len(word)
            if word not in trees.BRACES:
                spans.append((start, place))
        return np.array(self.encode(text), np.int32), np.array(spans, np.int32).reshape(-1, 2)

    def encode_after(self, text: str) -> list[int]:
        """`encode`: nothing is added to the beginning of a text."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self._pieces[i] for i in ids if i >= len(SPECIAL_PIECES))

    def piece(self, token: int) -> str:
        return self._pieces[token]
