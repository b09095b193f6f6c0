"""Text to token ids and back: one interface to SentencePiece models, WordPiece vocabularies, and
bytes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.pipeline import Source, usable_cores
from gmlp_flax.data.text.fixed_vocabulary import NAMED, utf8
from gmlp_flax.data.text.sentence_piece import SentencePieces, train
from gmlp_flax.data.text.word_piece import KEYS, WordPieces, decide, find_beside, read_settings
from gmlp_flax.errors import DataError
from gmlp_flax.io import files
from gmlp_flax.io.logs import to_stderr

TOKENIZER_FILE = "tokenizer.model"  # in a run folder, and beside prepared ids
MASK = "[MASK]"
DOCUMENTS = 1000  # whose [UNK] are counted at the start
_IN_FOLDERS = ("vocab.txt", "spiece.model", TOKENIZER_FILE, "tokenizer.json")
_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Tokenizer:
    """A tokenizer: immutable and picklable; two are equal if their models are.

    The model's content shows its kind: the line "bytes" stands for the bytes themselves, "listops"
    for the symbols of ListOps, other UTF-8 text is a WordPiece vocabulary or a tokenizer.json,
    anything else a SentencePiece model.

    | model | special pieces | text |
    |---|---|---|
    | SentencePiece, made by `train` | [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4 | cased; bytes for
    rare characters |
    | other SentencePiece, e.g. T5 | <pad> is [PAD], </s> is [SEP]; [CLS], [MASK] added at the end |
    as the model says |
    | BERT's vocab.txt, tokenizer.json | [PAD] [UNK] [CLS] [SEP] [MASK] anywhere | see WordPieces |
    | bytes | [PAD]=0 [UNK]=1 [CLS]=2 [SEP]=3 [MASK]=4, then byte b is 5 + b | as it is |
    | listops | the same, then its 15 symbols | a DataError if it has other words |

    But for bytes, text is normalised first (any white space becomes one space), so decoding gives
    the normalised text. `encode` never returns a special piece other than [UNK], whatever the text,
    and `decode` leaves special pieces out.

    Args:
        model: the content of the model's or vocabulary's file.
        name: the file's name, for the error.

    Attributes:
        model: the argument.
        checksum: SHA-256 of the model, in hexadecimal.
        vocab_size: the number of pieces, including special ones.
        special_ids: all special ids, in order: never masked, never drawn as a replacement.
        pad_id, cls_id, sep_id: the ids after the end of a sequence, at its beginning, and at the
            end of it or of a document.
        unk_id, mask_id: the ids of text that the vocabulary lacks, and of a hidden token.
        cases: of WordPiece, whether text is lower-cased, and stripped of accents; else None.
        may_lack: whether it may give [UNK], as a tokenizer that falls back on bytes does not.
        note: what `load` decided, a line for the start of a run; empty if there was nothing to
            decide.

    Raises:
        DataError: `model` is damaged, or lacks a special piece.
    """

    def __init__(self, model: bytes, name: str = "the given bytes"):
        if not model:
            raise DataError(
                f"{name}: damaged: an empty file is no tokenizer; train or copy it again"
            )
        self.model, self.checksum = model, hashlib.sha256(model).hexdigest()
        fixed = {f"{known}\n".encode(): engine for known, engine in NAMED.items()}.get(model)
        self._engine = (
            fixed() if fixed else (WordPieces if _is_text(model) else SentencePieces)(model, name)
        )
        self.note, self.cases = "", getattr(self._engine, "cases", None)
        self.may_lack = isinstance(self._engine, WordPieces) or getattr(
            self._engine, "may_lack", False
        )
        self.vocab_size: int = self._engine.vocab_size
        self.special_ids: tuple[int, ...] = self._engine.special_ids
        roles = ("pad", "unk", "cls", "sep", "mask")
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            self._engine.special.__getitem__, roles
        )

    @classmethod
    def train(cls, documents: Iterable[str], vocab_size: int) -> Tokenizer:
        """Trains a SentencePiece unigram model (Kudo, 2018): cased, and with bytes for characters
        it does not know.

        The result, byte for byte, depends on the documents, `vocab_size` and the version of
        SentencePiece alone. A corpus too small for `vocab_size` gives fewer pieces: read the number
        from `.vocab_size`.

        Raises:
            DataError: the corpus is empty, or `vocab_size` is too small for the special pieces, the
                256 bytes and the corpus's characters.
        """
        return cls(train(documents, vocab_size), "the trained model")

    @classmethod
    def load(cls, path: str | os.PathLike, **keys: str) -> Tokenizer:
        """Reads a tokenizer's file or the folder of one, or takes a name of NAMED.

        A WordPiece vocabulary does not say whether text is lower-cased and stripped of accents. A
        file named TOKENIZER_FILE is a copy whose reading is settled; of other files
        `word_piece.decide` settles it.

        Args:
            path: the file, or a folder as of Hugging Face.
            keys: word_piece.KEYS, if they are not auto.

        Raises:
            DataError: the file is missing or damaged, or what is beside it contradicts it or the
                keys.
        """
        if path in NAMED:
            return cls(f"{path}\n".encode(), str(path))
        path = os.fspath(path)
        if files.is_folder(path):
            found = [at for name in _IN_FOLDERS if files.exists(at := files.join(path, name))]
            if not found:
                raise DataError(
                    f"{path} has no tokenizer ({', '.join(_IN_FOLDERS)}): give its file"
                )
            path = found[0]
        tokenizer = cls(files.read_small(path), path)
        if isinstance(tokenizer._engine, WordPieces) and not path.endswith(TOKENIZER_FILE):
            content, note = decide(path, keys)
            tokenizer = cls(content, path)
            tokenizer.note = note
        elif isinstance(tokenizer._engine, SentencePieces) and (
            beside := find_beside(path, "tokenizer_config.json")
        ):
            lower = read_settings(beside).get("do_lower_case") is True
            if lower and tokenizer.encode("ABC") != tokenizer.encode("abc"):
                raise DataError(
                    f"{beside}: do_lower_case is true, which {path} does not do: lower-case texts, drop it"
                )
        tokenizer.check(keys, path)
        return tokenizer

    def check(self, keys: Mapping[str, str], name: str) -> None:
        """Raises DataError if it lower-cases or strips accents against word_piece.KEYS; `name` is
        its own."""
        own = dict(zip(KEYS, self.cases or (), strict=False))
        for key, value in keys.items():
            if value != "auto" and str(own.get(key)) != value.title():
                reading = (
                    f"its {key} is {own[key]}"
                    if own
                    else "it is no WordPiece vocabulary with BERT's normalizer"
                )
                raise DataError(
                    f"config.data.{key} is {value}, but of {name} {reading}: leave the key auto"
                )

    def same_pieces(self, other: Tokenizer) -> bool:
        """Whether both have the same pieces, though they may differ in lower case and accents."""
        pieces = [getattr(one._engine, "pieces", one.model) for one in (self, other)]
        return pieces[0] == pieces[1]

    def save(self, path: str | os.PathLike) -> None:
        """Writes the model to `path`, atomically; of WordPiece to a name that ends in .json as
        Hugging Face's `tokenizer.json`. Raises DataError if that fails."""
        as_json = os.fspath(path).endswith(".json")
        files.write(
            path,
            self._engine.to_json()
            if as_json and isinstance(self._engine, WordPieces)
            else self.model,
        )

    def encode(self, text: str) -> list[int]:
        """The text's token ids, without special ids, except [UNK] in a model that cannot fall back
        on bytes."""
        return self.encode_batch([text], 1)[0].tolist()

    def encode_batch(self, texts: Sequence[str], threads: int | None = None) -> list[np.ndarray]:
        """`encode` of each text, as int32 [tokens]; `threads=None` uses all cores."""
        return self._engine.encode_batch(texts, threads or usable_cores())

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """`encode`, and the span of each token in the given text, before normalisation.

        A token stands for text[start:stop], without white space before it; the span of white space
        is empty. Tokens that are parts of one character, such as its bytes, each have the whole
        character as their span. Neither start nor stop ever decreases.

        Returns:
            ids: int32 [tokens].
            spans: int32 [tokens, 2], start and stop in characters.
        """
        return self._engine.encode_with_offsets(text)

    def encode_masked(self, text: str) -> list[int]:
        """The text's token ids, with the id of [MASK] for each literal "[MASK]" in it.

        A mask replaces a word and the space before it: "Paris is [MASK]." ends in the ids of [MASK]
        and ".".
        """
        first, *others = text.split(MASK)
        # SentencePiece begins a text with a space
        encode_after = getattr(self._engine, "encode_after", self.encode)
        ids = list(self.encode(first))
        for part in others:
            ids += [self.mask_id, *encode_after(part)]
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids, without special pieces."""
        return self._engine.decode([int(token) for token in ids])

    def byte_counts(self) -> np.ndarray:
        """How many bytes of text each piece stands for, int32 [vocab_size]: 0 for special pieces.

        WordPiece does not tell whether a space stood before a punctuation mark: it is taken for
        none.
        """
        counts = np.zeros(self.vocab_size, np.int32)
        for token in {*range(self.vocab_size)}.difference(self.special_ids):
            piece = self.piece(token)
            if isinstance(self._engine, WordPieces) and re.fullmatch(r" [^\w\s]", piece):
                piece = piece[1:]
            counts[token] = 1 if _BYTE.fullmatch(piece) else len(utf8(piece))
        return counts

    def piece(self, token: int) -> str:
        """The piece of one id, for display: with a leading space if it begins a word; `<0x0A>` for
        a byte."""
        return self._engine.piece(int(token))

    def __reduce__(self):
        return Tokenizer, (self.model,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.model == other.model

    def __hash__(self) -> int:
        return hash(self.model)


def report_unknown(tokenizer: Tokenizer, source: Source | Sequence[Any], where: str) -> None:
    """Prints the share of [UNK] in "tokens" of the first DOCUMENTS examples, if the tokenizer may
    give it.

    Args:
        tokenizer, source: whose ids, and the examples.
        where: what the examples are, for messages.

    Raises:
        DataError: it is more than half, from which nothing can be learned.
    """
    if not tokenizer.may_lack:
        return
    ids = [source[i]["tokens"].ravel() for i in range(min(len(source), DOCUMENTS))]
    ids = np.concatenate([np.zeros(0, np.int64), *ids])
    unknown = np.count_nonzero(ids == tokenizer.unk_id)
    share = unknown / max(1, unknown + np.count_nonzero(~np.isin(ids, tokenizer.special_ids)))
    line = f"{where}: {share:.1%} of the tokens of the first documents are [UNK]"
    advice = "give a vocabulary of this language, or see data.do_lower_case and data.strip_accents"
    if share > 0.5:
        raise DataError(f"{line}, which teach a model nothing: {advice}")
    to_stderr(f"warning: {line}: {advice}" if share > 0.05 else line)


def _is_text(model: bytes) -> bool:
    try:
        return "\0" not in model.decode()
    except UnicodeDecodeError:
        return False
