"""A small corpus of several parts, and its tokenizer, for the tests of preparing and packing."""

import functools
import hashlib
import itertools
from pathlib import Path

from gmlp_flax.data.text.corpora import Corpus, MemoryPart
from gmlp_flax.data.text.tokenizer import Tokenizer

TEXTS = [
    f"Document {i} says: " + f"the quick brown fox jumps over {i * i} lazy dogs. " * (i % 7)
    for i in range(120)
]


@functools.cache
def tokenizer() -> Tokenizer:
    """A tokenizer of 320 pieces."""
    return Tokenizer.train(TEXTS, 320)


def corpus(parts: int, texts: list[str] = TEXTS) -> Corpus:
    """The texts in consecutive parts."""
    bounds = [len(texts) * i // parts for i in range(parts + 1)]
    pieces = (tuple(texts[first:stop]) for first, stop in itertools.pairwise(bounds))
    fingerprint = hashlib.sha256(repr(texts).encode()).hexdigest()
    return Corpus(
        "texts",
        tuple(MemoryPart(f"part {i}", piece) for i, piece in enumerate(pieces)),
        fingerprint,
    )


def content(folder: str | Path) -> dict[str, bytes]:
    """Name -> content of the files in a folder, without hidden ones."""
    return {
        path.name: path.read_bytes()
        for path in Path(folder).iterdir()
        if not path.name.startswith(".")
    }


def stream(texts: list[str]) -> list[int]:
    """The ids of the texts, with [SEP] after each."""
    return [token for text in texts for token in (*tokenizer().encode(text), tokenizer().sep_id)]
