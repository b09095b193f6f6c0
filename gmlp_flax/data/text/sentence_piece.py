"""SentencePiece models for `Tokenizer`: our own unigram models (Kudo, 2018) and published ones,
such as T5's."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece

from gmlp_flax.data.text.fixed_vocabulary import is_blank, utf8
from gmlp_flax.errors import DataError, decode_errors

# Everything that decides the trained model besides the corpus, the vocabulary size and the number
# of threads.
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

# Names of each special piece in various models, our own name first.
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
# If a model lacks these, they get the ids after its last piece, as T5's sentinels do.
_ADDED = ("cls", "mask")

# SentencePiece silently drops sentences above 4,192 bytes; 1,000 characters are 4,000 bytes at
# most.
_CHUNK = re.compile(r"(?s).{1,1000}(?!\S)|\S{1,1000}")

# A private-use character in place of the text before one that continues a word.
_STAND_IN = "\ue000"


class SentencePieces:
    """A SentencePiece model. It decides how text is normalised: usually NFKC, and any white space
    to one space.

    Args:
        model: the serialized model.
        name: the file's name, for errors.

    Attributes: as those of fixed_vocabulary.Bytes; special_ids include all other control pieces.

    Raises:
        DataError: `model` is damaged, or it lacks padding or an end of text.
    """

    def __init__(self, model: bytes, name: str):
        with decode_errors(
            f"{name}: damaged or not a SentencePiece model, nor a vocabulary in UTF-8",
            "train or copy it again",
        ):
            self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            pieces = processor.vocab_size()
            self.may_lack = not any(map(processor.is_byte, range(pieces)))
        self.special: dict[str, int] = {"unk": processor.unk_id()}
        self._added: list[str] = []
        for role, names in _NAMES.items():
            ids = (
                i for i in map(processor.piece_to_id, names) if processor.id_to_piece(i) in names
            )
            if (piece_id := next(ids, None)) is None:
                if role not in _ADDED:
                    raise DataError(
                        f"{name}: the model has no special token {names[0]} (nor {' or '.join(names[1:])}); "
                        "use a model with padding and an end of text, or train one with gmlp prepare"
                    )
                piece_id = pieces + len(self._added)
                self._added.append(names[0])
            self.special[role] = piece_id
        control = filter(processor.is_control, range(pieces))
        self.special_ids = tuple(sorted({*self.special.values(), *control}))
        self.vocab_size = pieces + len(self._added)

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        # Arrays, because lists of Python integers take twice as long.
        if len(texts) == 1:  # without a thread, which would take ten times as long to start
            return [self._processor.encode(utf8(texts[0]), return_type="numpy")]
        return self._processor.encode(
            list(map(utf8, texts)), num_threads=threads, return_type="numpy"
        )

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        text = utf8(text).decode()
        encoding = self._processor.encode(text, return_type="offset_mapping")
        ids, spans = (
            np.array(encoding["ids"], np.int32),
            np.array(encoding["offsets"], np.int32).reshape(-1, 2),
        )
        # If one character becomes several pieces, such as bytes, only the last of them has a span.
        last = np.where(spans[:, 0] < spans[:, 1], np.arange(len(spans)), len(spans))
        shared = np.minimum(np.minimum.accumulate(last[::-1])[::-1], len(spans) - 1)
        spans = spans[shared]
        for i in np.flatnonzero(
            [start < stop and is_blank(text[start]) for start, stop in spans.tolist()]
        ):
            start, stop = spans[i]
            spans[i, 0] = next((j for j in range(start, stop) if not is_blank(text[j])), stop)
        return ids, spans

    def encode_after(self, text: str) -> list[int]:
        """The ids of a text that follows another token: without the space that begins a line."""
        if not text or text[0].isspace():
            return self._processor.encode(utf8(text))
        whole = utf8(_STAND_IN + text)
        before, pieces = (
            self._processor.encode(part, return_type=str) for part in (utf8(_STAND_IN), whole)
        )
        last = len(before) - 1
        # Without byte fallback, the stand-in and an unknown character after it are one piece, which
        # the text keeps.
        return self._processor.encode(whole)[last + (pieces[last] == before[last]) :]

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([token for token in ids if token not in self.special_ids])

    def piece(self, token: int) -> str:
        added = token - (self.vocab_size - len(self._added))
        return (
            self._added[added]
            if added >= 0
            else self._processor.id_to_piece(token).replace("▁", " ")
        )


def train(documents: Iterable[str], vocab_size: int) -> bytes:
    """Trains a unigram model with byte fallback, with SPECIAL_PIECES as its first pieces; see
    Tokenizer.train."""
    model, stopped_by = io.BytesIO(), []

    def chunks() -> Iterator[bytes]:
        try:
            for document in documents:
                yield from map(utf8, cut_in_chunks(document))
        except (DataError, KeyboardInterrupt) as error:
            stopped_by.append(error)  # SentencePiece raises a RuntimeError instead.
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chunks(),
            model_writer=model,
            vocab_size=vocab_size,
            num_threads=TRAINING_THREADS,
            minloglevel=2,
            **TRAINING,
        )
    except RuntimeError as error:
        if stopped_by:
            raise stopped_by[0] from None
        advice = "give more text, or a vocab_size with room for 256 bytes and all characters"
        raise DataError(
            f"no tokenizer of vocab_size={vocab_size} can be trained on this text: {advice}"
        ) from error
    return model.getvalue()


def cut_in_chunks(document: str) -> Iterator[str]:
    """Cuts a document into pieces of at most 1,000 characters: at white space, unless a single word
    is longer."""
    return (
        match.group()
        for line in document.splitlines(keepends=True)
        for match in _CHUNK.finditer(line)
    )
