"""Training of a tokenizer on a corpus of any size, by a sample that depends on the corpus alone."""

import os
from collections.abc import Iterator
from pathlib import Path

from gmlp_flax.data.text.corpora import Corpus
from gmlp_flax.data.text.selection import EVERYTHING, Selection
from gmlp_flax.data.text.sentence_piece import TRAINING, TRAINING_THREADS
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.io.cache import cache_key, cached_file
from gmlp_flax.io.logs import heartbeat
from gmlp_flax.io.records import BadRecords

# Characters to train on, at most.
SAMPLE = 64_000_000


def cached_tokenizer(
    corpus: Corpus,
    vocab_size: int,
    cache_folder: str | os.PathLike,
    *,
    selection: Selection = EVERYTHING,
    sample: int = SAMPLE,
    max_bad_records: int = 0,
) -> Tokenizer:
    """Trains a tokenizer (see Tokenizer.train) on a corpus; it is kept in `cache_folder` as `tokenizer-<key>.model`.

    Each part contributes its beginning, in proportion to its size, until there are `sample` characters; a smaller
    corpus is used as a whole. The same corpus gives the same tokenizer.

    Raises:
        DataError: as in Tokenizer.train; or the corpus cannot be read, or has more than `max_bad_records`.
    """

    def model() -> bytes:
        with heartbeat(f"training a tokenizer of {vocab_size:,} pieces on {corpus.name}"):
            documents = sample_documents(corpus, selection, sample, BadRecords(max_bad_records))
            return Tokenizer.train(documents, vocab_size).model

    name = cache_key(corpus.digest, vocab_size, selection, sample, TRAINING_THREADS, TRAINING)
    return Tokenizer.load(cached_file(Path(cache_folder) / f"tokenizer-{name}.model", model))


def sample_documents(corpus: Corpus, selection: Selection, sample: int, bad: BadRecords) -> Iterator[str]:
    """The beginnings of the corpus's parts, of about `sample` characters together."""
    total = max(1, sum(part.size for part in corpus.parts))
    for part in corpus.parts:
        room = -(-sample * part.size // total)
        for document in selection.pick(part.documents(bad), whole=len(corpus.parts) == 1):
            yield document[:room]
            room -= len(document)
            if room <= 0:
                break
