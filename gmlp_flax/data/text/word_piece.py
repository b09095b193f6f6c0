"""WordPiece for `Tokenizer`: BERT's `vocab.txt` and `tokenizer.json`, encoded by the `tokenizers`
library."""

import importlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from gmlp_flax.data.text.fixed_vocabulary import utf8
from gmlp_flax.errors import DataError, decode_errors, require
from gmlp_flax.io import files, json_files

_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
_PREFIX = "##"
_SPLITS_AS_BERT = {
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "do_basic_tokenize": True,
}

KEYS = {  # as in Hugging Face's tokenizer_config.json
    "do_lower_case": "whether a WordPiece vocabulary lower-cases text; auto: as tokenizer_config.json or "
    "tokenizer.json beside it says, or guessed from its pieces",
    "strip_accents": "whether it also takes accents off letters, as in BERT's uncased models; auto: the same",
}
VALUES = ("auto", "True", "False", "true", "false")


class WordPieces:
    """A WordPiece vocabulary, or a tokenizer of the `tokenizers` library that has one; `##` marks
    pieces inside a word.

    A vocabulary has one piece per line, with the line's number as its id. Text is cleaned and split
    as BERT does. The file does not say whether text is lower-cased: `decide` does, before training,
    and what it makes is a `tokenizer.json`, unless a reading of the file alone gives the same: if
    no piece has an upper-case letter, other than names in brackets such as [CLS], text is
    lower-cased and stripped of accents, else it is left as it is.
    A `tokenizer.json` says everything: normalisation, how text is split, added tokens; its special
    tokens are the five of BERT, and are not recognised in texts.

    Args:
        model: the file's content.
        name: the file's name, for errors.

    Attributes: as those of fixed_vocabulary.Bytes.
        document: what the library builds the tokenizer of, in the form of `tokenizer.json`.
        pieces: the text of each piece.
        is_json: whether the file is a tokenizer.json.
        name: the argument.

    Raises:
        DataError: a special piece is missing, a piece occurs twice, or the tokenizer is of another
            kind than WordPiece.
        RunError: the tokenizers library is not installed.
    """

    def __init__(self, model: bytes, name: str):
        text, self.name = model.decode("utf-8-sig"), name
        self.is_json = text.lstrip().startswith("{") and text.rstrip().endswith("}")
        self.document = _read_json(model, name) if self.is_json else _read_vocabulary(text, name)
        ids = self.document["model"]["vocab"] | {
            one["content"]: one["id"] for one in self.document["added_tokens"]
        }
        self.pieces = sorted(ids, key=ids.__getitem__)
        if missing := [piece for piece in _ROLES.values() if piece not in ids]:
            raise DataError(
                f"{name}: a text file is a WordPiece vocabulary, one piece per line, but of {len(ids)} pieces none is "
                f"{' or '.join(missing)}; give BERT's vocab.txt or a SentencePiece model"
            )
        if [ids[piece] for piece in self.pieces] != [*range(len(ids))]:
            raise DataError(
                f"{name}: the ids of its {len(ids)} pieces are not 0 to {len(ids) - 1}; copy it again"
            )
        self.vocab_size = len(ids)
        self.special = {role: ids[piece] for role, piece in _ROLES.items()}
        self.special_ids = tuple(sorted(self.special.values()))
        library = require("tokenizers", "a WordPiece vocabulary", "wordpiece")
        with decode_errors(
            f"{name}: not a tokenizer that the tokenizers library reads", "copy it again"
        ):
            self._tokenizer = library.Tokenizer.from_str(json.dumps(self.document))
        self._tokenizer.decoder = library.decoders.WordPiece(prefix=_PREFIX, cleanup=True)

    @property
    def cases(self) -> tuple[bool, bool] | None:
        """Whether text is lower-cased, and stripped of accents; None if the normaliser is not
        BERT's."""
        normalizer = self.document["normalizer"] or {}
        if normalizer.get("type") != "BertNormalizer":
            return None
        lower, strip = normalizer.get("lowercase", True), normalizer.get("strip_accents")
        return lower, lower if strip is None else strip

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        texts = [utf8(text).decode() for text in texts]
        # The library uses one thread or all of them.
        encodings = (
            map(self._tokenizer.encode, texts)
            if threads == 1
            else self._tokenizer.encode_batch_fast(texts)
        )
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer.encode_with_offsets."""
        encoding = self._tokenizer.encode(utf8(text).decode())
        return np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2)

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([token for token in ids if token not in self.special_ids])

    def to_json(self) -> bytes:
        """The `tokenizer.json` of Hugging Face's libraries, with BERT's special tokens and [CLS] a
        [SEP] b [SEP]."""
        library = importlib.import_module("tokenizers")
        full = library.Tokenizer.from_str(self._tokenizer.to_str())
        full.add_special_tokens([*_ROLES.values()])
        sep, cls = ((_ROLES[role], self.special[role]) for role in ("sep", "cls"))
        full.post_processor = library.processors.BertProcessing(sep, cls)
        return full.to_str(pretty=True).encode()

    def piece(self, token: int) -> str:
        piece = self.pieces[token]
        begins = not piece.startswith(_PREFIX) and token not in self.special_ids
        return f" {piece}" if begins else piece.removeprefix(_PREFIX)


def decide(path: str, keys: Mapping[str, str]) -> tuple[bytes, str]:
    """Reads a vocabulary or a tokenizer.json, with what lies beside it, for a run that begins.

    Args:
        path: the file.
        keys: KEYS -> VALUES; those that are missing are auto.

    Returns:
        The content of a file that says everything (see WordPieces), and a line that tells what was
        decided, and why.

    Raises:
        DataError: as in WordPieces; or two files contradict each other, or ask for what is not
            BERT's.
    """
    own = WordPieces(files.read_small(path), path)
    beside = "" if own.is_json else find_beside(path, "tokenizer.json")
    if beside and _kind(json_files.read(beside, dict)) == "WordPiece":
        vocabulary, own = (
            own.document["model"]["vocab"],
            WordPieces(files.read_small(beside), beside),
        )
        if own.document["model"]["vocab"] != vocabulary:
            raise DataError(f"{path} and {beside} have different pieces: move the wrong one away")
    elif not own.is_json and (beside := find_beside(path, "added_tokens.json")):
        more = [one for one in json_files.read(beside, dict) if one not in own.pieces]
        if more:
            raise DataError(
                f"{beside} adds {more[0]!r} ({len(more)} in all): give a tokenizer.json, which has them"
            )
    name = PurePath(own.name).name
    given = {key: value.lower() == "true" for key, value in keys.items() if value != "auto"}
    if own.cases is None:
        if given:
            raise DataError(
                f"{path} has a normalizer that is not BERT's: {next(iter(given))} must be auto"
            )
        return _json(own.document), f"{name}: text is normalised as it says"
    sources, normalizer = {name: own.cases} if own.is_json else {}, own.document["normalizer"]
    if beside := find_beside(path, "tokenizer_config.json"):
        settings = read_settings(beside)
        stated, more = _stated(settings, beside)
        sources |= {PurePath(beside).name: stated} if stated else {}
        normalizer = normalizer | ({} if own.is_json else more)
        if not sources:  # it may say one of the two
            given = {
                key: settings[key] for key in KEYS if isinstance(settings.get(key), bool)
            } | given
    advice = f"config.data.{' and config.data.'.join(KEYS)}"
    if len({*sources.values()}) > 1 and len(given) < len(KEYS):
        read = "; ".join(
            f"{file}: {dict(zip(KEYS, of, strict=True))}" for file, of in sources.items()
        )
        raise DataError(f"{path}: files contradict each other: {read}; set {advice}")
    found = next(iter(sources.values()), None) or _guess(own.pieces, given.get("do_lower_case"))
    why = (
        f"as {' and '.join(sources)} says"
        if sources
        else f"guessed from its pieces; {advice} say otherwise"
    )
    if given:
        why = (
            f"as {' and '.join(f'{key}={value}' for key, value in given.items())} says; else {why}"
        )
    lower, strip = (given.get(key, value) for key, value in zip(KEYS, found, strict=True))
    document = own.document | {
        "normalizer": normalizer | {"lowercase": lower, "strip_accents": strip}
    }
    told = f"text is {'' if lower else 'not '}lower-cased, accents are {'stripped' if strip else 'kept'}"
    bare = ("\n".join(own.pieces) + "\n").encode() if own.is_json else files.read_small(path)
    is_plain = _read_vocabulary(bare.decode("utf-8-sig"), path) == document
    return (bare if is_plain else _json(document)), f"{name}: {told}, {why}"


def _guess(pieces: Sequence[str], lower: bool | None = None) -> tuple[bool, bool]:
    """Lower case and strip accents, as the pieces look. Single letters, names in brackets and a few
    pieces, such as those that someone wrote over [unused] ones, do not make a vocabulary cased."""
    words = {piece.removeprefix(_PREFIX) for piece in pieces if not _in_brackets(piece)}
    letters = [word for word in words if word.lower() != word.upper()]
    letters = [word for word in letters if len(word) > 1] or letters
    capitals = sum(word != word.lower() for word in letters)
    lower = capitals <= 0.1 * len(letters) if lower is None else lower
    return lower, lower and sum(word != _without_accents(word) for word in words) <= 0.001 * len(
        words
    )


def _in_brackets(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]")


def _without_accents(text: str) -> str:
    """As BERT strips accents: decomposed (NFD), without the marks of category Mn."""
    return "".join(
        one for one in unicodedata.normalize("NFD", text) if unicodedata.category(one) != "Mn"
    )


def find_beside(path: str, file: str) -> str:
    """The path of `file` beside a vocabulary, or of ko_tokenizer.json beside ko_vocab.txt; empty if
    there is none."""
    folder, slash, name = path.rpartition("/")
    names = name.rpartition(".")[0].replace("vocab", file.removesuffix(".json")) + ".json", file
    return next(
        (at for one in names if (at := f"{folder}{slash}{one}") != path and files.exists(at)), ""
    )


def _stated(
    settings: Mapping[str, Any], path: str
) -> tuple[tuple[bool, bool] | None, dict[str, bool]]:
    """Lower case and strip accents of a tokenizer_config.json, if it has them, and more for BERT's
    normalizer."""
    for key, known in _SPLITS_AS_BERT.items():
        if settings.get(key, known) not in (known, None):
            raise DataError(
                f"{path}: {key} is {settings[key]!r}, which does not split text as BERT's WordPiece does: give a "
                "tokenizer.json or a SentencePiece model"
            )
    lower, strip, chinese = (settings.get(key) for key in (*KEYS, "tokenize_chinese_chars"))
    cases = (
        (lower, strip if isinstance(strip, bool) else lower) if isinstance(lower, bool) else None
    )
    return cases, {"handle_chinese_chars": chinese} if isinstance(chinese, bool) else {}


def read_settings(path: str) -> dict[str, Any]:
    """The content of a tokenizer_config.json, in which true and false may be text."""
    texts = {"true": True, "True": True, "false": False, "False": False}
    return {
        key: texts.get(value, value) if isinstance(value, str) else value
        for key, value in json_files.read(path, dict).items()
    }


def _kind(document: Mapping[str, Any]) -> str:
    """The kind of a tokenizer.json; old ones do not name it."""
    model = document.get("model")
    if not isinstance(model, dict):
        return "no model"
    old = (
        "Unigram"
        if isinstance(model.get("vocab"), list)
        else "BPE"
        if "merges" in model
        else "WordPiece"
    )
    return str(model.get("type", old))


def _read_json(content: bytes, name: str) -> dict[str, Any]:
    """What decides the tokens in a tokenizer.json."""
    given = json_files.parse(content, name, dict)
    if (kind := _kind(given)) != "WordPiece":
        raise DataError(
            f"{name}: a tokenizer.json with {kind}: expected WordPiece, as BERT's tokenizer.json or vocab.txt, or a "
            "SentencePiece model (spiece.model, tokenizer.model)"
        )
    model = _MODEL | given["model"]
    with decode_errors(f"{name}: damaged", "copy it again"):
        vocabulary = dict(sorted(model["vocab"].items(), key=lambda pair: pair[1]))
        added = [one | {"id": int(one["id"])} for one in given.get("added_tokens") or []]
        added = [one for one in added if one["content"] not in _ROLES.values()]
    for key in ("unk_token", "continuing_subword_prefix"):
        if model[key] != _MODEL[key]:
            raise DataError(f"{name}: {key} is {model[key]!r}: expected {_MODEL[key]!r}")
    parts = {part: given.get(part) for part in ("normalizer", "pre_tokenizer")}
    return _document(
        {key: model[key] for key in _MODEL} | {"vocab": vocabulary}, added_tokens=added, **parts
    )


def _read_vocabulary(text: str, name: str) -> dict[str, Any]:
    """A vocab.txt by itself, as the copies in run folders are read."""
    # As the tokenizers library, which takes blanks from the ends of lines; a mark of UTF-8 has no
    # width.
    pieces = [line.lstrip("\ufeff").rstrip() for line in text.removesuffix("\n").split("\n")]
    ids = {piece: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces) and ids.keys() >= {*_ROLES.values()}:
        twice = next(piece for i, piece in enumerate(pieces) if ids[piece] != i)
        raise DataError(f"{name}: the piece {twice!r} occurs twice; copy the vocabulary again")
    uncased = all(piece == piece.lower() for piece in ids if not _in_brackets(piece))
    normalizer = {
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": uncased,
        "lowercase": uncased,
    }
    parts = {
        "normalizer": {"type": "BertNormalizer"} | normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }
    return _document(_MODEL | {"vocab": ids}, added_tokens=[], **parts)


def _document(model: dict[str, Any], **parts: Any) -> dict[str, Any]:
    absent = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    return {"version": "1.0", **absent, **parts, "model": model}


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, ensure_ascii=False, sort_keys=True) + "\n").encode()
