"""From documents to token ids, and from those to windows of equal length."""

import hashlib
import itertools
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from gmlp_flax.data.cache import cached_file
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.tokenizer import TRAINING, TRAINING_THREADS, Tokenizer

# Documents encoded in one call: enough to keep every core busy, few enough to stream.
_DOCUMENTS_AT_ONCE = 256


def tokenize(documents: Iterable[str], tokenizer: Tokenizer) -> np.ndarray:
    """The ids of all documents in one array, [SEP] after each document (BERT's full sentences, as in RoBERTa).

    Returns:
        [tokens], uint16 if the vocabulary allows, else int32.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    documents = iter(documents)
    parts = [np.empty(0, dtype)]
    while group := list(itertools.islice(documents, _DOCUMENTS_AT_ONCE)):
        parts += [np.array([*ids, tokenizer.sep_id], dtype) for ids in tokenizer.encode_batch(group)]
    return np.concatenate(parts)


class Windows:
    """Consecutive windows over token ids, as a random-access source; no token is lost or doubled.

    Window i is [CLS], the i-th `length - 2` tokens, [SEP]; the last one is padded with [PAD] after its [SEP]. Items
    are {"tokens": int32 [length], "index": int32}.

    Args:
        tokens: [tokens], any integer type; may be memory-mapped, and is then pickled as the name of its file.
        length: the length of a window, special tokens included.
        tokenizer: for the ids of [CLS], [SEP] and [PAD].

    Raises:
        DataError: there are fewer tokens than one window needs.
    """

    def __init__(self, tokens: np.ndarray, length: int, tokenizer: Tokenizer):
        if length < 3:
            raise DataError(f"length={length} leaves no room between [CLS] and [SEP]; give at least 3")
        if len(tokens) < length - 2:
            raise DataError(
                f"the corpus has {len(tokens)} tokens, a sequence of length {length} needs {length - 2}; "
                f"lower the length to {len(tokens) + 2} or less, or give more text"
            )
        self.tokens, self.length = tokens, length
        self._cls, self._sep, self._pad = tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id

    def __len__(self) -> int:
        return -(-len(self.tokens) // (self.length - 2))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        start = index * (self.length - 2)
        inside = self.tokens[start : start + self.length - 2]
        window = np.full(self.length, self._pad, np.int32)
        window[0] = self._cls
        window[1 : 1 + len(inside)] = inside
        window[1 + len(inside)] = self._sep
        return {"tokens": window, "index": np.int32(index)}

    def __getstate__(self) -> dict:
        state = dict(self.__dict__)
        # A map of a whole file; the `base` of a slice of one is another array.
        if isinstance(self.tokens, np.memmap) and isinstance(self.tokens.base, mmap.mmap):
            state["tokens"] = _Mapped(self.tokens)
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update(state)
        if isinstance(self.tokens, _Mapped):
            self.tokens = self.tokens.open()

    def __repr__(self) -> str:
        return f"Windows(tokens={len(self.tokens)}, length={self.length})"


class _Mapped:
    """What it takes to map a file again: pickled in place of the array, whose content may be large."""

    def __init__(self, array: np.memmap):
        self.arguments = dict(filename=array.filename, dtype=array.dtype, shape=array.shape, offset=array.offset)

    def open(self) -> np.memmap:
        return np.memmap(mode="r", **self.arguments)


def corpus_fingerprint(documents: Iterable[str]) -> str:
    """SHA-256, in hexadecimal, over the documents and where each one ends."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def cached_tokenizer(documents: Callable[[], Iterable[str]], vocab_size: int, folder: str) -> Tokenizer:
    """Trains a tokenizer, or reads the one trained before on the same documents for the same size.

    Args:
        documents: called for each pass over the corpus: once to recognise it, once more to train.
        vocab_size: as in Tokenizer.train.
        folder: where `tokenizer-<key>.model` is kept; made if need be.

    Raises:
        DataError: see Tokenizer.train; or `folder` cannot be written to.
    """
    key = _key(corpus_fingerprint(documents()), vocab_size, TRAINING_THREADS, TRAINING)
    path = Path(folder) / f"tokenizer-{key}.model"
    return Tokenizer.load(cached_file(path, lambda file: file.write(Tokenizer.train(documents(), vocab_size).model)))


def cached_tokens(documents: Callable[[], Iterable[str]], tokenizer: Tokenizer, folder: str) -> np.memmap:
    """`tokenize`, or its result of before for the same documents and tokenizer: a read-only memory map.

    Args:
        documents: called for each pass over the corpus: once to recognise it, once more to encode.
        tokenizer: the tokenizer.
        folder: where `tokens-<key>.npy` is kept; made if need be.

    Raises:
        DataError: `folder` cannot be written to.
    """
    path = Path(folder) / f"tokens-{_key(corpus_fingerprint(documents()), tokenizer.checksum)}.npy"
    return np.load(cached_file(path, lambda file: np.save(file, tokenize(documents(), tokenizer))), mmap_mode="r")


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
