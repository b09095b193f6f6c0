"""Decides, before training, whether a WordPiece vocabulary lower-cases text and strips accents: by
keys of the config, or by Hugging Face's files beside it. A vocabulary alone does not say."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from gmlp_flax.data.text.word_piece import (
    KEYS,
    Cases,
    Document,
    WordPieces,
    as_json,
    kind_of,
    plain_document,
    read_lines,
)
from gmlp_flax.errors import DataError
from gmlp_flax.io import files, json_files

_SPLITS_AS_BERT = {
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
    "do_basic_tokenize": True,
}


def decide(path: str, keys: Mapping[str, str]) -> tuple[bytes, str]:
    """Reads a vocabulary or a tokenizer.json, with the files beside it, for a new run.

    Args:
        path: the file.
        keys: KEYS -> VALUES; those that are missing are auto.

    Returns:
        The content of a file that says everything (see WordPieces), and a line that says what was
        decided, and why.

    Raises:
        DataError: as in WordPieces; or neither a file nor a key decides, two files contradict each
            other, or they ask for something that BERT does not do.
    """
    vocabulary = _read_with_siblings(path)
    name = PurePath(vocabulary.name).name
    chosen = _chosen_keys(keys)
    if vocabulary.cases is None:
        if chosen:
            key, *_ = chosen
            raise DataError(f"{path} has a normalizer that is not BERT's: {key} must be auto")
        content = as_json(vocabulary.document)
        return content, f"{name}: text is normalized as it says"
    settings: dict[str, Any] = {}
    config = find_sibling(path, "tokenizer_config.json")
    if config:
        settings = read_settings(config)
        _require_bert_splitting(settings, config)
    statements = _statements(vocabulary, config, settings)
    if not statements:  # the config may set strip_accents alone
        chosen = _stated_keys(settings) | chosen
    cases, reason = _settle(path, statements, chosen)
    document = _with_cases(vocabulary, settings, cases)
    content = _content(path, vocabulary, document)
    words = _in_words(cases)
    note = f"{name}: {words}, {reason}"
    return content, note


def _statements(
    vocabulary: WordPieces, config: str, settings: Mapping[str, Any]
) -> dict[str, Cases]:
    """Name of a file -> what it says about capitals and accents.

    Args:
        vocabulary: says something if it is a tokenizer.json.
        config: the path of the tokenizer_config.json, or "".
        settings: its content.
    """
    statements = {}
    cases = vocabulary.cases
    if vocabulary.is_json and cases is not None:
        name = PurePath(vocabulary.name).name
        statements[name] = cases
    stated = _stated_cases(settings)
    if stated is not None:
        config_name = PurePath(config).name
        statements[config_name] = stated
    return statements


def _in_words(cases: Cases) -> str:
    lowered = "lower-cased" if cases.do_lower_case else "not lower-cased"
    accents = "stripped" if cases.strip_accents else "kept"
    return f"text is {lowered}, accents are {accents}"


def _with_cases(vocabulary: WordPieces, settings: Mapping[str, Any], cases: Cases) -> Document:
    """A vocabulary's document with the decision on capitals and accents, and with the setting for
    Chinese characters of a tokenizer_config.json."""
    normalizer = dict(vocabulary.document["normalizer"])
    splits_chinese = settings.get("tokenize_chinese_chars")
    if isinstance(splits_chinese, bool) and not vocabulary.is_json:
        normalizer["handle_chinese_chars"] = splits_chinese
    normalizer["lowercase"] = cases.do_lower_case
    normalizer["strip_accents"] = cases.strip_accents
    return {**vocabulary.document, "normalizer": normalizer}


def _chosen_keys(keys: Mapping[str, str]) -> dict[str, bool]:
    """The KEYS that are not auto."""
    chosen = {}
    for key, value in keys.items():
        if value != "auto":
            chosen[key] = value.lower() == "true"
    return chosen


def _read_with_siblings(path: str) -> WordPieces:
    """The WordPiece tokenizer.json beside a vocabulary if there is one, else the vocabulary itself.

    Raises:
        DataError: the two have different pieces, or another file adds some.
    """
    content = files.read_small(path)
    vocabulary = WordPieces(content, path)
    if vocabulary.is_json:
        return vocabulary
    sibling = find_sibling(path, "tokenizer.json")
    if sibling and _has_word_pieces(sibling):
        full_content = files.read_small(sibling)
        full = WordPieces(full_content, sibling)
        if full.model_pieces() != vocabulary.model_pieces():
            raise DataError(f"{path} and {sibling} have different pieces: move the wrong one away")
        return full
    _refuse_added_tokens(path, vocabulary)
    return vocabulary


def _has_word_pieces(path: str) -> bool:
    """Whether a tokenizer.json has a model of WordPiece."""
    document = json_files.read(path, dict)
    return kind_of(document) == "WordPiece"


def _refuse_added_tokens(path: str, vocabulary: WordPieces) -> None:
    """Raises DataError if an added_tokens.json beside a vocabulary adds pieces."""
    added = find_sibling(path, "added_tokens.json")
    if not added:
        return
    known = set(vocabulary.pieces)
    pieces = json_files.read(added, dict)
    new = [piece for piece in pieces if piece not in known]
    if new:
        first = new[0]
        count = len(new)
        raise DataError(
            f"{added} adds {first!r} ({count} in all): give a tokenizer.json, which has them"
        )


def _settle(
    path: str, statements: Mapping[str, Cases], chosen: Mapping[str, bool]
) -> tuple[Cases, str]:
    """Decides what becomes of capitals and accents, and says why.

    Args:
        path: the vocabulary's path, for messages.
        statements: name of a file -> what it says.
        chosen: KEYS -> what a key says, which outweighs every file. If neither says more, accents
            are stripped where text is lower-cased, as BERT does.

    Raises:
        DataError: files contradict each other, or say nothing, and the keys do not decide.
    """
    stated = list(statements.values())
    are_contradictory = len(set(stated)) > 1
    if are_contradictory and len(chosen) < len(KEYS):
        raise _contradiction(path, statements)
    reasons = []
    if chosen:
        values = " and ".join(f"{key}={value}" for key, value in chosen.items())
        reasons.append(f"as {values} says")
    if stated:
        cases = stated[0]
        names = " and ".join(statements)
        reasons.append(f"as {names} says")
    elif "do_lower_case" in chosen:
        lower = chosen["do_lower_case"]
        cases = Cases(lower, lower)
    else:
        raise DataError(
            f"{path} does not say whether text is lower-cased, and no tokenizer_config.json or "
            "tokenizer.json beside it does: set config.data.do_lower_case=True for an uncased "
            "vocabulary, False for a cased one, or write tokenizer_config.json with "
            '{"do_lower_case": true} or false'
        )
    settled = cases._replace(**chosen)
    reason = "; else ".join(reasons)
    return settled, reason


def _contradiction(path: str, statements: Mapping[str, Cases]) -> DataError:
    """The error if the files beside a vocabulary say different things."""
    descriptions = []
    for name, cases in statements.items():
        settings = cases._asdict()
        descriptions.append(f"{name}: {settings}")
    described = "; ".join(descriptions)
    keys = " and ".join(f"config.data.{key}" for key in KEYS)
    return DataError(f"{path}: files contradict each other: {described}; set {keys}")


def _content(path: str, vocabulary: WordPieces, document: Document) -> bytes:
    """A file that says what a document says: the vocabulary's lines if they are read in the same
    way, else a tokenizer.json."""
    plain = plain_document(vocabulary.pieces)
    is_plain = plain == document
    if is_plain and not vocabulary.is_json:
        return files.read_small(path)
    joined = "\n".join(vocabulary.pieces)
    lines = joined + "\n"
    if is_plain and read_lines(lines) == vocabulary.pieces:
        return lines.encode()
    return as_json(document)


def find_sibling(path: str, file: str) -> str:
    """The path of `file`, such as tokenizer.json, beside a vocabulary, or of ko_tokenizer.json
    beside ko_vocab.txt; empty if there is none."""
    folder, slash, name = path.rpartition("/")
    names = [file]
    stem, _, _ = name.rpartition(".")
    if "vocab" in stem:
        file_stem = file.removesuffix(".json")
        sibling_stem = stem.replace("vocab", file_stem)
        names.insert(0, f"{sibling_stem}.json")
    for candidate in names:
        sibling = f"{folder}{slash}{candidate}"
        if sibling != path and files.exists(sibling):
            return sibling
    return ""


def _require_bert_splitting(settings: Mapping[str, Any], path: str) -> None:
    """Raises DataError if a tokenizer_config.json splits text in another way than BERT does."""
    for key, expected in _SPLITS_AS_BERT.items():
        value = settings.get(key)
        if value not in (expected, None):
            raise DataError(
                f"{path}: {key} is {value!r}, which does not split text as BERT's "
                "WordPiece does: give a tokenizer.json or a SentencePiece model"
            )


def _stated_cases(settings: Mapping[str, Any]) -> Cases | None:
    """What a tokenizer_config.json says about capitals and accents; None if it does not set
    do_lower_case."""
    stated = _stated_keys(settings)
    if "do_lower_case" not in stated:
        return None
    lower = stated["do_lower_case"]
    strip = stated.get("strip_accents", lower)
    return Cases(lower, strip)


def _stated_keys(settings: Mapping[str, Any]) -> dict[str, bool]:
    """The KEYS that a tokenizer_config.json sets."""
    stated = {}
    for key in KEYS:
        value = settings.get(key)
        if isinstance(value, bool):
            stated[key] = value
    return stated


def read_settings(path: str) -> dict[str, Any]:
    """The content of a tokenizer_config.json, in which true and false may be text."""
    texts = {"true": True, "True": True, "false": False, "False": False}
    settings = json_files.read(path, dict)
    for key, value in settings.items():
        if isinstance(value, str):
            settings[key] = texts.get(value, value)
    return settings
