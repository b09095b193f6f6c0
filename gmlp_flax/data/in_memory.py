"""A corpus of documents that are in memory, such as the embedded text."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gmlp_flax.data.corpora import Corpus
from gmlp_flax.data.records import BadRecords


class Documents(NamedTuple):
    """The one part of such a corpus; see corpora.Part."""

    name: str
    texts: tuple[str, ...]

    @property
    def size(self) -> int:
        """Characters: near enough to bytes for a progress bar."""
        return sum(map(len, self.texts))

    def documents(self, bad: BadRecords | None = None) -> Iterator[str]:
        """Yields the documents."""
        return iter(self.texts)


def corpus(name: str, documents: Iterable[str]) -> Corpus:
    """A corpus of the documents, recognised by their content; those of white space only are left out."""
    texts = tuple(document for document in documents if document.strip())
    digest = hashlib.sha256()
    for document in texts:
        data = document.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return Corpus(name, (Documents(name, texts),), digest.hexdigest())
