"""Which documents of a corpus to take, and what tells one corpus from another."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

from gmlp_flax.data import corpora
from gmlp_flax.data.errors import DataError

SIDES = ("train", "heldout")


class Selection(NamedTuple):
    """Which documents of a corpus to take.

    Attributes:
        share: of documents held out, by their content (see corpora.is_heldout); 0 takes all.
        side: "train" or "heldout".
    """

    share: float = 0.0
    side: str = "train"

    def check(self) -> None:
        """Raises DataError where these are no such values."""
        if self.side not in SIDES:
            raise DataError(f"side {self.side!r}; expected one of {', '.join(map(repr, SIDES))}")
        if not 0 <= self.share < 1:
            raise DataError(f"heldout_share={self.share}; expected 0 to below 1, 0.05 for 5 % of the documents")
        if self.side == "heldout" and not self.share:
            raise DataError("side 'heldout' needs a heldout_share above 0; 0.05 holds out 5 % of the documents")

    def pick(self, documents: Iterator[str], alone: bool) -> Iterator[str]:
        """The documents on this side. Where they may be `alone` and one is, it is cut at a line."""
        if not self.share:
            return documents
        heldout = self.side == "heldout"
        first = list(itertools.islice(documents, 2)) if alone else []
        if len(first) == 1:
            return iter(corpora.split_documents(first, self.share)[heldout])
        every = itertools.chain(first, documents)
        return (document for document in every if corpora.is_heldout(document, self.share) == heldout)


EVERYTHING = Selection()


def corpus_digest(corpus: corpora.Corpus) -> str:
    """SHA-256, in hexadecimal, over the corpus's fingerprint and its parts."""
    parts = [(part.name, part.size) for part in corpus.parts]
    return hashlib.sha256(repr((corpus.fingerprint, parts)).encode()).hexdigest()


def key(*parts: object) -> str:
    """A short name for a result that depends on the parts alone."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
