"""SentencePiece models for `Tokenizer`: our own unigram models (Kudo, 2018) and published ones,
such as T5's."""

import functools
import io
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece

from gmlp_flax.data.text.fixed_vocabulary import Encoding, make_encoding, skip_blanks, utf8
from gmlp_flax.errors import DataError, decode_errors

# Everything that decides the trained model, besides the corpus, the vocabulary size and the number
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
# The additional options of `keep_white_space`: the model decodes a text as it was.
KEEPING_WHITE_SPACE = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "allow_whitespace_only_pieces": True,  # indentation
    "user_defined_symbols": ["\n", "\r", "\t"],  # separate pieces: no piece spans two words
}
TRAINING_THREADS = 4

# Names of each special piece in various models, our own name first.
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "</s>", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
# A model without these gets them after its last piece, as T5's sentinels are.
_ADDED = ("cls", "mask")

# SentencePiece silently drops sentences above 4,192 bytes; 1,000 characters have at most 4,000
# bytes.
_CHUNK = re.compile(r"(?s).{1,1000}(?!\S)|\S{1,1000}")
# It also drops sentences with a tab or a null.
_DROPPED = re.compile("[\t\0]+")

# A private-use character in place of the text before one that continues a word.
STAND_IN = "\ue000"

_SPACE = "▁"  # in pieces

# How a model that keeps white space normalizes a text with some.
_WHITE_SPACE = "a  b\n\tc"
_WHITE_SPACE_KEPT = _WHITE_SPACE.replace(" ", _SPACE)


class SentencePieces:
    """A SentencePiece model. It decides how text is normalized: usually NFKC, and any white space
    to one space.

    Args:
        model: the serialized model.
        name: the file's name, for errors.

    Attributes: as those of fixed_vocabulary.Bytes; special_ids include all other control pieces.
        falls_back_on_bytes: whether characters that are in no piece become bytes, not [UNK].
        keeps_white_space: whether runs of blanks, tabs and line breaks are kept.
        adds_pieces: whether special pieces follow those of the model, which has not all of them.

    Raises:
        DataError: `model` is damaged, or padding or an end of text is missing.
    """

    def __init__(self, model: bytes, name: str):
        what = f"{name}: damaged or not a SentencePiece model, nor a vocabulary in UTF-8"
        with decode_errors(what, "train or copy it again"):
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            count = processor.vocab_size()
            pieces = range(count)
            self.falls_back_on_bytes = any(map(processor.is_byte, pieces))
            control_ids = list(filter(processor.is_control, pieces))
        self._processor = processor
        normalized = processor.normalize(_WHITE_SPACE)
        # Llama's begins every text with a blank, and keeps all others.
        without_first = normalized.removeprefix(_SPACE)
        self.keeps_white_space = without_first == _WHITE_SPACE_KEPT
        self.special: dict[str, int] = {"unk": processor.unk_id()}
        self._added: list[str] = []
        self.vocab_size = count
        for role, names in _NAMES.items():
            piece_id = self._find_piece(names)
            if piece_id is None:
                if role not in _ADDED:
                    raise _missing_piece(name, names)
                piece_id = self.vocab_size
                self.vocab_size += 1
                self._added.append(names[0])
            self.special[role] = piece_id
        self.adds_pieces = bool(self._added)
        special_ids = {*self.special.values(), *control_ids}
        self.special_ids = tuple(sorted(special_ids))

    def _find_piece(self, names: Sequence[str]) -> int | None:
        """The id of the first of some pieces that the model has."""
        for name in names:
            piece_id = self._processor.piece_to_id(name)  # the id of [UNK] for an unknown piece
            if self._processor.id_to_piece(piece_id) == name:
                return piece_id
        return None

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        """See Tokenizer.encode_batch."""
        encode = functools.partial(
            self._processor.encode,
            return_type="numpy",  # lists of Python integers take twice as long
        )
        encoded = [utf8(text) for text in texts]
        if len(encoded) == 1:  # without a thread, which would take ten times as long to start
            [text] = encoded
            return [encode(text)]
        return encode(encoded, num_threads=threads)

    def encode_with_offsets(self, text: str) -> Encoding:
        """See Tokenizer.encode_with_offsets."""
        content = utf8(text)  # without lone surrogates
        text = content.decode()
        encoded = self._processor.encode(text, return_type="offset_mapping")
        spans = _text_spans(text, encoded["offsets"])
        return make_encoding(encoded["ids"], spans)

    def encode_after(self, text: str) -> list[int]:
        """The ids of a text that follows another token: without the space that begins a line."""
        encode = self._processor.encode
        collapses_blanks = not self.keeps_white_space
        if not text or (collapses_blanks and text[0].isspace()):
            content = utf8(text)
            return encode(content)
        stand_in_content = utf8(STAND_IN)
        stand_in = encode(stand_in_content, return_type=str)
        whole = utf8(STAND_IN + text)
        pieces = encode(whole, return_type=str)
        ids = encode(whole)
        first = len(stand_in)
        # Without byte fallback, the stand-in and an unknown character after it are one piece, which
        # the text keeps.
        if pieces[first - 1] != stand_in[-1]:
            first -= 1
        return ids[first:]

    def decode(self, ids: Iterable[int]) -> str:
        """See Tokenizer.decode."""
        text_ids = [token for token in ids if token not in self.special_ids]
        return self._processor.decode(text_ids)

    def piece(self, token: int) -> str:
        """See Tokenizer.piece."""
        first_added = self.vocab_size - len(self._added)
        if token >= first_added:
            number = token - first_added
            return self._added[number]
        piece = self._processor.id_to_piece(token)
        return piece.replace(_SPACE, " ")


def _missing_piece(name: str, names: Sequence[str]) -> DataError:
    """The error of a model that has a special piece under none of its names."""
    first, *further = names
    others = " or ".join(further)
    return DataError(
        f"{name}: the model has no special token {first} (nor {others}); use a model with "
        "padding and an end of text, or train one with gmlp prepare"
    )


def _text_spans(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The span of each token, without blanks at its beginning.

    If one character becomes several pieces, such as bytes, only the last of them has a span in
    `offsets`; the others get the same one.
    """
    spans: list[tuple[int, int]] = []
    span = (0, 0)
    if offsets:
        span = offsets[-1]
    for start, stop in reversed(offsets):
        if start < stop:
            first = skip_blanks(text, start, stop)
            span = (first, stop)
        spans.append(span)
    spans.reverse()
    return spans


def train(documents: Iterable[str], vocab_size: int, keep_white_space: bool = False) -> bytes:
    """Trains a unigram model with byte fallback, whose first pieces are the special ones; see
    Tokenizer.train."""
    model = io.BytesIO()
    stopped_by: list[BaseException] = []
    options = dict(TRAINING)
    if keep_white_space:
        options.update(KEEPING_WHITE_SPACE)

    def sentences() -> Iterator[bytes]:
        """The sentences; keeps the error that stops them."""
        try:
            yield from _sentences(documents, keep_white_space)
        except (DataError, KeyboardInterrupt) as error:
            stopped_by.append(error)  # SentencePiece raises a RuntimeError instead.
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences(),
            model_writer=model,
            vocab_size=vocab_size,
            num_threads=TRAINING_THREADS,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        if stopped_by:
            raise stopped_by[0] from None
        raise DataError(
            f"no tokenizer of vocab_size={vocab_size} can be trained on this text: give more text, "
            "or a vocab_size with room for 256 bytes and all characters"
        ) from error
    return model.getvalue()


def _sentences(documents: Iterable[str], keep_white_space: bool) -> Iterator[bytes]:
    """The documents as SentencePiece reads them in training."""
    for document in documents:
        parts = [document]
        if keep_white_space:
            parts = _DROPPED.split(document)
        for part in parts:
            for chunk in cut_in_chunks(part):
                yield utf8(chunk)


def cut_in_chunks(document: str) -> Iterator[str]:
    """Cuts a document into pieces of at most 1,000 characters: at white space, unless a single word
    is longer."""
    for line in document.splitlines(keepends=True):
        for match in _CHUNK.finditer(line):
            yield match.group()
