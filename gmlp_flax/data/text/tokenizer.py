"""Text to token ids and back: one interface to SentencePiece models, WordPiece vocabularies, byte
pairs, and bytes."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from gmlp_flax.data.pipeline import usable_cores
from gmlp_flax.data.text.byte_pairs import BytePairs, is_byte_pairs
from gmlp_flax.data.text.casing import decide, find_sibling, read_settings
from gmlp_flax.data.text.fixed_vocabulary import NAMED, Bytes, Encoding, FixedVocabulary, utf8
from gmlp_flax.data.text.sentence_piece import STAND_IN, SentencePieces, train
from gmlp_flax.data.text.word_piece import Cases, WordPieces
from gmlp_flax.errors import DataError
from gmlp_flax.io import files

TOKENIZER_FILE = "tokenizer.model"  # in a run folder, and beside prepared ids
MASK = "[MASK]"
DOCUMENTS = 1000  # in which [UNK] is counted at the start of a run
Blank = Literal["never", "missing", "always"]
_IN_FOLDERS = ("vocab.txt", "spiece.model", TOKENIZER_FILE, "tokenizer.json")
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPACE_AND_MARK = re.compile(r" [^\w\s]")


class Tokenizer:
    """A tokenizer: immutable and picklable; two are equal if their models are.

    The model's content shows its kind: the line "bytes" stands for the bytes themselves, "listops"
    for the symbols of ListOps, other UTF-8 text is a WordPiece vocabulary or a tokenizer.json,
    anything else a SentencePiece model.

    | model | special pieces | text |
    |---|---|---|
    | SentencePiece, made by `train` | [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4 | cased; bytes for
    rare characters; white space kept or not |
    | other SentencePiece, e.g. T5 | <pad> is [PAD], </s> is [SEP]; [CLS], [MASK] added at the end |
    as the model says |
    | BERT's vocab.txt, tokenizer.json | [PAD] [UNK] [CLS] [SEP] [MASK] anywhere | see WordPieces |
    | tokenizer.json with BPE | the same, or <pad> <unk> <s> </s> <mask>, or Llama 3's | see
    BytePairs |
    | bytes | [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4, then byte b is 5 + b | as it is |
    | listops | the same, then its 15 symbols | a DataError if it has other words |

    Unless white space is kept, text is normalized first (any white space becomes one space), so
    decoding gives the normalized text. `encode` never returns a special piece other than [UNK],
    whatever the text, and `decode` leaves special pieces out.

    Args:
        model: the content of the model's or vocabulary's file.
        name: the file's name, for the error.

    Attributes:
        model: the argument.
        checksum: SHA-256 of the model, in hexadecimal.
        vocab_size: the number of pieces, including special ones.
        special_ids: all special ids, in order: never masked, never drawn as a replacement.
        pad_id: the id of [PAD], which follows the end of a sequence.
        cls_id: the id of [CLS], at the beginning of a sequence.
        sep_id: the id of [SEP], at the end of a sequence or of a document.
        unk_id: the id of [UNK], for text that is not in the vocabulary.
        mask_id: the id of [MASK], for a hidden token.
        cases: whether WordPiece lower-cases text and strips accents; None for other kinds.
        may_be_unknown: whether text may become [UNK]; False if the model falls back on bytes.
        keeps_white_space: whether line breaks, tabs and runs of blanks are in the ids.
        note: what `load` decided, a line for the start of a run; empty if there was nothing to
            decide.

    Raises:
        DataError: `model` is damaged, or a special piece is missing.
    """

    def __init__(self, model: bytes, name: str = "the given bytes"):
        self.model = model
        digest = hashlib.sha256(model)
        self.checksum = digest.hexdigest()
        self.note = ""
        engine = _make_engine(model, name)
        self._engine = engine
        self.vocab_size: int = engine.vocab_size
        self.special_ids: tuple[int, ...] = engine.special_ids
        self.pad_id: int = engine.special["pad"]
        self.unk_id: int = engine.special["unk"]
        self.cls_id: int = engine.special["cls"]
        self.sep_id: int = engine.special["sep"]
        self.mask_id: int = engine.special["mask"]
        self.cases: Cases | None = None
        self.may_be_unknown = False
        self.keeps_white_space = isinstance(engine, Bytes)
        if isinstance(engine, WordPieces):
            self.cases = engine.cases
            self.may_be_unknown = True
        elif isinstance(engine, SentencePieces | BytePairs):
            self.may_be_unknown = not engine.falls_back_on_bytes
            self.keeps_white_space = engine.keeps_white_space

    @classmethod
    def train(
        cls, documents: Iterable[str], vocab_size: int, keep_white_space: bool = False
    ) -> Tokenizer:
        """Trains a SentencePiece unigram model (Kudo, 2018): cased, and with bytes for characters
        it does not know.

        The result, byte for byte, depends only on the arguments and the version of SentencePiece.
        A corpus too small for `vocab_size` gives fewer pieces: read the number from `.vocab_size`.

        Args:
            documents: the texts.
            vocab_size: the number of pieces.
            keep_white_space: whether decoding gives back the text as it was, except for the
                character U+2581, by which SentencePiece writes a blank; else Unicode's NFKC is
                applied, and any white space becomes one blank.

        Raises:
            DataError: the corpus is empty, or `vocab_size` is too small for the special pieces, the
                256 bytes and the corpus's characters.
        """
        model = train(documents, vocab_size, keep_white_space)
        return cls(model, "the trained model")

    @classmethod
    def load(cls, path: str | os.PathLike, **keys: str) -> Tokenizer:
        """Reads a tokenizer's file or the folder of one, or takes a name of NAMED.

        A WordPiece vocabulary does not say whether text is lower-cased and stripped of accents. A
        file named TOKENIZER_FILE is a copy whose reading is settled; for other files,
        `casing.decide` settles it.

        Args:
            path: the file, or a folder like Hugging Face's.
            keys: the values of word_piece.KEYS that are not auto.

        Raises:
            DataError: the file is missing or damaged, or a file beside it contradicts it or the
                keys.
        """
        path = os.fspath(path)
        if path in NAMED:
            content = _named_content(path)
            tokenizer = cls(content, path)
            tokenizer.check(keys, path)
            return tokenizer
        if files.is_folder(path):
            path = _find_in_folder(path)
        content = files.read_small(path)
        tokenizer = cls(content, path)
        is_settled = path.endswith(TOKENIZER_FILE)
        if isinstance(tokenizer._engine, SentencePieces):
            tokenizer._refuse_lower_case(path)
        elif isinstance(tokenizer._engine, WordPieces) and not is_settled:
            content, note = decide(path, keys)
            tokenizer = cls(content, path)
            tokenizer.note = note
        tokenizer.check(keys, path)
        return tokenizer

    def _refuse_lower_case(self, path: str) -> None:
        """Raises DataError if the tokenizer_config.json beside a SentencePiece model asks for lower
        case, which the model does not do by itself."""
        config = find_sibling(path, "tokenizer_config.json")
        if not config:
            return
        settings = read_settings(config)
        wants_lower_case = settings.get("do_lower_case") is True
        if wants_lower_case and self.encode("ABC") != self.encode("abc"):
            raise DataError(
                f"{config}: do_lower_case is true, and {path} does not lower-case text: lower-case "
                "the data, and remove the key"
            )

    def check(self, keys: Mapping[str, str], name: str) -> None:
        """Raises DataError if the tokenizer's lower-casing or stripping of accents contradicts
        word_piece.KEYS; `name` is the tokenizer's, for the message."""
        settled = {}
        if self.cases is not None:
            settled = self.cases._asdict()
        for key, value in keys.items():
            setting = settled.get(key)
            is_met = str(setting) == value.title()
            if value == "auto" or is_met:
                continue
            reading = "it is not a WordPiece vocabulary with BERT's normalizer"
            if settled:
                reading = f"its {key} is {setting}"
            raise DataError(
                f"config.data.{key} is {value}, which does not fit {name}: {reading}; leave the "
                "key auto"
            )

    def same_pieces(self, other: Tokenizer) -> bool:
        """Whether both have the same pieces, though they may differ in lower case and accents."""
        return self._pieces() == other._pieces()

    def _pieces(self) -> object:
        """A value that is equal if the pieces are."""
        if isinstance(self._engine, SentencePieces):
            return self.model
        return list(self._engine.pieces)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model to `path`, atomically. WordPiece is written to a name that ends in .json
        as Hugging Face's `tokenizer.json`. Raises DataError if that fails."""
        name = os.fspath(path)
        content = self.model
        if name.endswith(".json") and isinstance(self._engine, WordPieces):
            content = self._engine.to_json()
        files.write(path, content)

    def to_json(self) -> bytes | None:
        """Hugging Face's `tokenizer.json`, from which the library `tokenizers` gives the same ids;
        None for the kinds that it does not read."""
        if isinstance(self._engine, WordPieces | BytePairs):
            return self._engine.to_json()
        return None

    @property
    def mask_takes_blanks(self) -> bool:
        """Whether the white space before a [MASK] belongs to it, as a tokenizer.json may say."""
        return isinstance(self._engine, BytePairs) and self._engine.mask_takes_blanks

    @property
    def is_plain_sentence_piece(self) -> bool:
        """Whether SentencePiece's own library, with the file of the model, gives all ids: special
        pieces are in the model."""
        return isinstance(self._engine, SentencePieces) and not self._engine.adds_pieces

    def encode(self, text: str) -> list[int]:
        """The text's token ids, without special ids, except [UNK] in a model that cannot fall back
        on bytes."""
        (ids,) = self.encode_batch([text], threads=1)
        return ids.tolist()

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> list[np.ndarray]:
        """`encode` of each text, as int32 [tokens]; `threads=None` uses all cores."""
        thread_count = threads or usable_cores()
        return self._engine.encode_batch(texts, thread_count)

    @functools.cached_property
    def blank_before(self) -> Blank:
        """When a text gets a blank before it, which matters to a part of a text: "never", or not so
        that it changes the tokens of a part; "missing": if it begins with none (RoBERTa's
        `add_prefix_space`); "always": even if it begins with one (Llama 2)."""
        first = self.encode("a")
        if self.encode("a b") != first + self.encode(" b"):
            return "always" if self.encode("a b") == first + self.encode("b") else "never"
        if self.encode("a\nb") != first + self.encode("\nb"):
            return "missing"
        return "never"

    def encode_after(self, text: str) -> list[int]:
        """`encode` of a text that continues a word: without a blank before it."""
        if isinstance(self._engine, SentencePieces):
            return self._engine.encode_after(text)
        before = self.encode(STAND_IN)
        whole = self.encode(STAND_IN + text)
        count = len(before)
        if whole[:count] == before:
            return whole[count:]
        return self.encode(text)

    def encode_with_offsets(self, text: str) -> Encoding:
        """`encode`, and the span of each token in the given text, before normalization.

        A token stands for text[start:stop], without white space before it; the span of white space
        is empty. Tokens that are parts of one character, such as its bytes, each have the whole
        character as their span. Neither start nor stop ever decreases.
        """
        return self._engine.encode_with_offsets(text)

    def encode_masked(self, text: str) -> list[int]:
        """The text's token ids, with the id of [MASK] for each literal "[MASK]" in it.

        A mask replaces a word and the space before it: "Paris is [MASK]." ends in the ids of [MASK]
        and ".".
        """
        parts = text.split(MASK)
        if isinstance(self._engine, BytePairs):
            parts = self._engine.around_masks(parts)
        first, *others = parts
        ids = self.encode(first)
        for part in others:
            ids.append(self.mask_id)
            if isinstance(self._engine, SentencePieces):  # begins a text with a space
                ids += self._engine.encode_after(part)
            else:
                ids += self.encode(part)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, without special pieces."""
        tokens = [int(token) for token in ids]
        return self._engine.decode(tokens)

    def byte_counts(self) -> np.ndarray:
        """How many bytes of text each piece stands for, int32 [vocab_size]: 0 for special pieces.

        WordPiece's ids do not show whether there was a space before a punctuation mark: none is
        counted.
        """
        counts = np.zeros(self.vocab_size, np.int32)
        special = set(self.special_ids)
        for token in range(self.vocab_size):
            if token in special:
                continue
            if isinstance(self._engine, BytePairs):
                counts[token] = self._engine.byte_count(token)
            else:
                piece = self.piece(token)
                counts[token] = self._byte_count(piece)
        return counts

    def _byte_count(self, piece: str) -> int:
        if _BYTE.fullmatch(piece):
            return 1
        text = piece
        if isinstance(self._engine, WordPieces) and _SPACE_AND_MARK.fullmatch(piece):
            text = piece[1:]
        content = utf8(text)
        return len(content)

    def piece(self, token: int) -> str:
        """The piece of one id, for display: with a leading space if it begins a word; `<0x0A>` for
        a byte."""
        plain_token = int(token)
        return self._engine.piece(plain_token)

    def __reduce__(self):
        return Tokenizer, (self.model,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)


def _make_engine(
    model: bytes, name: str
) -> FixedVocabulary | WordPieces | BytePairs | SentencePieces:
    """The engine that encodes, chosen by the content of the model."""
    if not model:
        raise DataError(
            f"{name}: damaged: an empty file is not a tokenizer; train or copy it again"
        )
    for known, vocabulary in NAMED.items():
        if model == _named_content(known):
            return vocabulary()
    if _is_text(model):
        if is_byte_pairs(model, name):
            return BytePairs(model, name)
        return WordPieces(model, name)
    return SentencePieces(model, name)


def _named_content(name: str) -> bytes:
    """The content of the file that stands for a name of NAMED."""
    line = f"{name}\n"
    return line.encode()


def _find_in_folder(folder: str) -> str:
    """The path of the tokenizer's file in a folder; raises DataError if there is none."""
    for name in _IN_FOLDERS:
        path = files.join(folder, name)
        if files.exists(path):
            return path
    expected = ", ".join(_IN_FOLDERS)
    raise DataError(f"{folder} has no tokenizer ({expected}): give its file")


def _is_text(model: bytes) -> bool:
    try:
        text = model.decode()
    except UnicodeDecodeError:
        return False
    return "\0" not in text
