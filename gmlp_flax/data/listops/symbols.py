"""Text as words of a small fixed vocabulary, the symbols of ListOps, for `Tokenizer`: nothing is trained."""

import re
from collections.abc import Iterable

import numpy as np

from gmlp_flax.data.listops import trees
from gmlp_flax.data.text.byte_level import SPECIAL_PIECES, FixedVocabulary
from gmlp_flax.errors import DataError

NAME = "listops"  # in the place of a file's name
MODEL = b"listops\n"  # the content of the file that stands for it in run folders


class Symbols(FixedVocabulary):
    """Words with white space between: ListOps's symbols have the ids 5 to 19, after [PAD] [UNK] [CLS] [SEP] [MASK].

    Round brackets, which group arguments in the published files, are left out, as the published reader does.
    """

    def __init__(self) -> None:
        super().__init__(trees.SYMBOLS)
        self._numbers = {word: len(SPECIAL_PIECES) + i for i, word in enumerate(trees.SYMBOLS)}

    def encode(self, text: str) -> list[int]:
        """Raises DataError for a word that is no symbol."""
        try:
            return [self._numbers[word] for word in text.split() if word not in trees.BRACES]
        except KeyError as error:
            raise DataError(f"the symbol {error.args[0][:40]!r}; expected one of {' '.join(trees.SYMBOLS)}") from None

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        spans = [word.span() for word in re.finditer(r"\S+", text) if word[0] not in trees.BRACES]
        return np.array(self.encode(text), np.int32), np.array(spans, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self.pieces[i] for i in ids if i >= len(SPECIAL_PIECES))
