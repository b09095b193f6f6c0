"""A small corpus of several parts, and its tokenizer, for the tests of preparing and packing."""

import functools
import hashlib
from pathlib import Path

from gmlp_flax.data.text.corpus import Corpus, Documents, MemoryPart
from gmlp_flax.data.text.tokenizer import Tokenizer


def document(number: int) -> str:
    """A text of up to six sentences."""
    sentence = f"the quick brown fox jumps over {number * number} lazy dogs. "
    sentences = number % 7
    return f"Document {number} says: " + sentence * sentences


TEXTS = [document(number) for number in range(120)]


@functools.cache
def tokenizer() -> Tokenizer:
    """A tokenizer of 320 pieces."""
    return Tokenizer.train(TEXTS, 320)


def corpus(parts: int, texts: list[str] = TEXTS) -> Corpus:
    """The texts in consecutive parts."""
    count = len(texts)
    pieces = []
    for number in range(parts):
        first = count * number // parts
        stop = count * (number + 1) // parts
        part = MemoryPart(f"part {number}", tuple(texts[first:stop]))
        pieces.append(part)
    text = repr(texts)
    content = hashlib.sha256(text.encode()).hexdigest()
    return of_parts(pieces, content)


def of_parts(parts, content: str = "content") -> Corpus:
    """A corpus called "texts"."""
    documents = Documents(tuple(parts))
    return Corpus(path="texts", form="texts in memory", examples=documents, content=content)


def content(folder: str | Path) -> dict[str, bytes]:
    """Name -> content of the files in a folder, without hidden ones."""
    contents = {}
    for path in Path(folder).iterdir():
        if not path.name.startswith("."):
            contents[path.name] = path.read_bytes()
    return contents


def stream(texts: list[str]) -> list[int]:
    """The ids of the texts, with [SEP] after each."""
    ids = []
    for text in texts:
        ids += tokenizer().encode(text)
        ids.append(tokenizer().sep_id)
    return ids
