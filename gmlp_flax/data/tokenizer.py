"""A SentencePiece unigram tokenizer (Kudo, 2018) with byte fallback: cased, and no text is out of its vocabulary."""

import functools
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece

from gmlp_flax.data.cache import write_atomically
from gmlp_flax.data.errors import DataError

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Everything that decides the trained model besides the corpus, the vocabulary size and the number of threads.
TRAINING = {
    "model_type": "unigram",
    "byte_fallback": True,
    "hard_vocab_limit": False,
    "pad_id": 0,
    "pad_piece": "[PAD]",
    "unk_id": 1,
    "unk_piece": "[UNK]",
    "bos_id": 2,
    "bos_piece": "[CLS]",
    "eos_id": 3,
    "eos_piece": "[SEP]",
    "control_symbols": ["[MASK]"],
}
TRAINING_THREADS = 4

# SentencePiece silently drops sentences above 4,192 bytes; 1,000 characters are 4,000 bytes at most.
_CHUNK = re.compile(r"(?s).{1,1000}(?!\S)|\S{1,1000}")

# A private-use character that stands for [MASK] while the text around it is encoded.
_MASK_STAND_IN = "\ue000"


class Tokenizer:
    """A trained tokenizer: immutable, picklable, equal to another if their models are.

    Text is normalised first (NFKC; any white space becomes one space), so decoding gives the normalised text.
    Special pieces, [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4, never come from `encode`, whatever the text, and are
    left out by `decode`.

    Args:
        model: a serialized SentencePiece model with SPECIAL_PIECES as its first pieces.
        name: where the model came from, for the error.

    Raises:
        DataError: `model` is damaged, or a SentencePiece model with other special pieces.
    """

    pad_id, unk_id, cls_id, sep_id, mask_id = special_ids = tuple(range(len(SPECIAL_PIECES)))

    def __init__(self, model: bytes, name: str = "the given bytes"):
        self.model = model
        try:
            # An empty model parses, as one without pieces.
            special = [self._processor.id_to_piece(i) for i in self.special_ids] if model else []
        except (RuntimeError, IndexError) as error:
            raise DataError(f"{name}: damaged or not a SentencePiece model; train or copy it again") from error
        if special != list(SPECIAL_PIECES):
            raise DataError(
                f"{name}: the model begins with {special}, expected {list(SPECIAL_PIECES)}; "
                "use one made by Tokenizer.train"
            )

    @classmethod
    def train(cls, documents: Iterable[str], vocab_size: int, threads: int = TRAINING_THREADS) -> "Tokenizer":
        """Trains on `documents`.

        The result is the same, byte for byte, on any machine with the same `threads` and version of SentencePiece. A
        corpus too small for `vocab_size` gives fewer pieces: read the number from `.vocab_size`.

        Raises:
            DataError: the corpus is empty, or `vocab_size` has no room for the special pieces, the 256 bytes and the
                corpus's characters.
        """
        model = io.BytesIO()
        chunks = (chunk for document in documents for chunk in _chunks(document))
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=chunks,
                model_writer=model,
                vocab_size=vocab_size,
                num_threads=threads,
                minloglevel=2,
                **TRAINING,
            )
        except RuntimeError as error:
            # SentencePiece reports every failure as a RuntimeError that quotes its own code.
            if "sentences_.empty()" in str(error) or "all_chars_count" in str(error):
                raise DataError("no text to train a tokenizer on; give documents with text in them") from error
            if "ocabulary size" not in str(error):
                raise
            raise DataError(
                f"vocab_size={vocab_size} is too small: {len(SPECIAL_PIECES)} special pieces, 256 bytes and every "
                "character of the corpus need one each; raise it"
            ) from error
        return cls(model.getvalue(), "the trained model")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Tokenizer":
        """Reads a tokenizer written by `save`; raises DataError where there is none, or a damaged one."""
        try:
            with open(path, "rb") as file:
                model = file.read()
        except OSError as error:
            raise DataError(f"no tokenizer at {str(path)!r} ({error.strerror}); check the path or train one") from error
        return cls(model, str(path))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model to `path` (atomically); raises DataError where that cannot be written."""
        write_atomically(path, lambda file: file.write(self.model))

    def encode(self, text: str) -> list[int]:
        """The text's token ids, without special ones."""
        return self._processor.encode(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, on all cores."""
        return self._processor.encode(list(texts))

    def encode_masked(self, text: str) -> list[int]:
        """The text's token ids with [MASK] for each literal "[MASK]" in it.

        A mask takes the place of a word together with the space before it: "Paris is [MASK]." ends in the ids of
        [MASK] and ".".
        """
        stand_in, ids = self._mask_stand_in, []
        for token in self.encode(text.replace("[MASK]", _MASK_STAND_IN)):
            ids.append(token)
            if ids[-len(stand_in) :] == stand_in:
                del ids[-len(stand_in) :]
                if ids and self._processor.id_to_piece(ids[-1]) == "▁":
                    ids.pop()
                ids.append(self.mask_id)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, special ones left out."""
        return self._processor.decode([int(token) for token in ids])

    def piece(self, token: int) -> str:
        """The piece of one id, for display: a leading space where it begins a word, `<0x0A>` for a byte."""
        return self._processor.id_to_piece(int(token)).replace("▁", " ")

    @functools.cached_property
    def vocab_size(self) -> int:
        """The number of pieces, special ones included."""
        return self._processor.vocab_size()

    @functools.cached_property
    def checksum(self) -> str:
        """SHA-256 of the model, in hexadecimal."""
        return hashlib.sha256(self.model).hexdigest()

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    @functools.cached_property
    def _mask_stand_in(self) -> list[int]:
        ids = self.encode(_MASK_STAND_IN)
        return ids[1:] if self._processor.id_to_piece(ids[0]) == "▁" else ids

    def __reduce__(self):
        return Tokenizer, (self.model,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, checksum={self.checksum[:8]})"


def _chunks(document: str) -> Iterator[str]:
    """Cuts a document into pieces of at most 1,000 characters: at white space, inside a word only if it is longer."""
    return (match.group() for line in document.splitlines(keepends=True) for match in _CHUNK.finditer(line))
