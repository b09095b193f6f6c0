"""Trains a tokenizer on a corpus of any size: on a sample that the corpus alone decides."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gmlp_flax.data.cache import cached_file
from gmlp_flax.data.corpora import Corpus
from gmlp_flax.data.records import BadRecords
from gmlp_flax.data.selection import EVERYTHING, Selection, corpus_digest, key
from gmlp_flax.data.sentence_piece import TRAINING, TRAINING_THREADS
from gmlp_flax.data.tokenizer import Tokenizer

# At most so many characters are trained on.
SAMPLE = 64_000_000


def train_tokenizer(
    corpus: Corpus, vocab_size: int, *, selection: Selection = EVERYTHING, sample: int = SAMPLE,
    max_bad_records: int = 0,
) -> Tokenizer:
    """Trains a tokenizer (see Tokenizer.train) on the beginning of each part of the corpus.

    Each part gives documents until it has given its share, by its size, of `sample` characters: all of them, if the
    corpus is not larger. The same corpus gives the same tokenizer.

    Raises:
        DataError: as in Tokenizer.train; or the corpus cannot be read, or has more bad records.
    """
    selection.check()
    return Tokenizer.train(_sample(corpus, selection, sample, BadRecords(max_bad_records)), vocab_size)


def cached_tokenizer(
    corpus: Corpus, vocab_size: int, cache_folder: str | os.PathLike, *, selection: Selection = EVERYTHING,
    sample: int = SAMPLE, max_bad_records: int = 0,
) -> Tokenizer:
    """`train_tokenizer`, or its result of before, kept in `cache_folder` as `tokenizer-<key>.model`."""
    name = key(corpus_digest(corpus), vocab_size, selection, sample, TRAINING_THREADS, TRAINING)
    options = {"selection": selection, "sample": sample, "max_bad_records": max_bad_records}
    path = cached_file(
        Path(cache_folder) / f"tokenizer-{name}.model",
        lambda file: file.write(train_tokenizer(corpus, vocab_size, **options).model),
    )
    return Tokenizer.load(path)


def _sample(corpus: Corpus, selection: Selection, sample: int, bad: BadRecords) -> Iterator[str]:
    total = max(1, sum(part.size for part in corpus.parts))
    for part in corpus.parts:
        room = -(-sample * part.size // total)
        for document in selection.pick(part.documents(bad), alone=len(corpus.parts) == 1):
            yield document[:room]
            room -= len(document)
            if room <= 0:
                break
