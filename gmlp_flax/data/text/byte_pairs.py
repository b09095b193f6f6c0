"""Byte-pair encoding for `Tokenizer`: the tokenizer.json of RoBERTa, ModernBERT and Llama, encoded
by the `tokenizers` library."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.text import word_piece
from gmlp_flax.data.text.fixed_vocabulary import Encoding, make_encoding, skip_blanks, utf8
from gmlp_flax.errors import DataError, decode_errors, require
from gmlp_flax.io import json_files

# Names of each special piece in various models, our own name first. Llama's has no [PAD] and no
# [MASK]: a piece that no text becomes stands in for them.
_NAMES = {
    "pad": (
        "[PAD]",
        "<pad>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_0|>",
        "<unk>",
    ),
    "cls": ("[CLS]", "<s>", "<|begin_of_text|>"),
    "sep": ("[SEP]", "</s>", "<|end_of_text|>"),
    "mask": ("[MASK]", "<mask>", "<|reserved_special_token_1|>", "<unk>"),
}
_UNKNOWN = ("[UNK]", "<unk>")  # one without them gets [PAD]'s id: all text has pieces
_SPACE = "▁"  # in pieces of Llama
_WHITE_SPACE = "a  b\n\tc"


def is_byte_pairs(content: bytes, name: str) -> bool:
    """Whether a text file is a tokenizer.json with byte pairs; raises DataError if it is JSON, and
    damaged."""
    text = content.decode("utf-8-sig")
    if not word_piece.is_json(text):
        return False
    document = json_files.parse(content, name, dict)
    return word_piece.kind_of(document) == "BPE"


class BytePairs:
    """A tokenizer.json of the `tokenizers` library whose model is BPE: over bytes (RoBERTa,
    ModernBERT, Llama 3), or over characters, with bytes for those that it does not know (Llama 2).

    The file says how text is normalized and split. Its special tokens are not recognized in texts,
    and its post-processor, which adds them, is not used.

    Args:
        model: the file's content.
        name: the file's name, for errors.

    Attributes: as those of fixed_vocabulary.Bytes; special_ids include all tokens that the file
        calls special.
        falls_back_on_bytes: whether all text has pieces, so that none becomes [UNK].
        keeps_white_space: whether runs of blanks, tabs and line breaks are kept.
        mask_takes_blanks: whether the white space before a mask belongs to it.

    Raises:
        DataError: the file is damaged, or a special piece is missing.
        RunError: the tokenizers library is not installed.
    """

    def __init__(self, model: bytes, name: str):
        library = require("tokenizers", "a tokenizer.json", "wordpiece")
        what = f"{name}: not a tokenizer that the tokenizers library reads"
        with decode_errors(what, "copy it again"):
            document = json_files.parse(model, name, dict)
            text = model.decode("utf-8-sig")
            tokenizer = library.Tokenizer.from_str(text)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode_special_tokens = True
            ids = tokenizer.get_vocab(with_added_tokens=True)
            added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = tokenizer
        self.is_over_bytes = _has_part(document, "ByteLevel")
        has_bytes = bool(document["model"].get("byte_fallback"))
        self.falls_back_on_bytes = self.is_over_bytes or has_bytes
        self.special = _special(ids, name)
        special_ids = set(self.special.values())
        self._added: dict[int, str] = {}
        for token, piece in added.items():
            self._added[token] = piece.content
            if piece.special:
                special_ids.add(token)
        self.special_ids = tuple(sorted(special_ids))
        word_piece.require_consecutive(ids, name)
        self.pieces = sorted(ids, key=ids.__getitem__)
        self.vocab_size = len(ids)
        mask = added.get(self.special["mask"])
        self.mask_takes_blanks = mask is not None and mask.lstrip
        white_space = self._encode(_WHITE_SPACE)
        decoded = tokenizer.decode(white_space.ids)
        self.keeps_white_space = decoded == _WHITE_SPACE

    def _encode(self, text: str) -> Any:
        """The library's encoding of a text that is valid UTF-8."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[np.ndarray]:
        """See Tokenizer.encode_batch."""
        valid = [utf8(text).decode() for text in texts]
        if threads == 1:  # the library uses one thread or all of them
            encodings = [self._encode(text) for text in valid]
        else:
            encodings = self._tokenizer.encode_batch_fast(valid, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_offsets(self, text: str) -> Encoding:
        """See Tokenizer.encode_with_offsets."""
        valid = utf8(text).decode()
        encoded = self._encode(valid)
        spans = []
        start = 0  # neither end of a span ever decreases
        stop = 0
        for token_start, token_stop in encoded.offsets:
            first = skip_blanks(valid, token_start, token_stop)
            start = max(first, start)
            stop = max(start, token_stop, stop)
            span = (start, stop)
            spans.append(span)
        return make_encoding(encoded.ids, spans)

    def decode(self, ids: Iterable[int]) -> str:
        """See Tokenizer.decode."""
        text_ids = [token for token in ids if token not in self.special_ids]
        return self._tokenizer.decode(text_ids)

    def around_masks(self, parts: Sequence[str]) -> list[str]:
        """The parts of a text between masks, without the white space before a mask if the file
        says that it belongs to the mask."""
        if not self.mask_takes_blanks:
            return list(parts)
        *before, last = parts
        stripped = [part.rstrip() for part in before]
        return [*stripped, last]

    def to_json(self) -> bytes:
        """The file, without cutting and padding."""
        text = self._tokenizer.to_str(pretty=True)
        return text.encode()

    def piece(self, token: int) -> str:
        """See Tokenizer.piece; bytes that are not UTF-8 are shown one by one."""
        piece = self.pieces[token]
        if token in self._added:
            return piece
        if not self.is_over_bytes:
            return piece.replace(_SPACE, " ")
        content = _bytes_of(piece)
        try:
            return content.decode()
        except UnicodeDecodeError:
            shown = [f"<0x{byte:02X}>" for byte in content]
            return "".join(shown)

    def byte_count(self, token: int) -> int:
        """How many bytes of text a piece stands for."""
        piece = self.pieces[token]
        if token in self._added:
            content = utf8(piece)
            return len(content)
        if self.is_over_bytes:
            content = _bytes_of(piece)
            return len(content)
        is_byte = piece.startswith("<0x") and len(piece) == len("<0x00>")
        if is_byte:
            return 1
        text = piece.replace(_SPACE, " ")
        return len(utf8(text))


def _has_part(document: word_piece.Document, kind: str) -> bool:
    """Whether a tokenizer.json splits or decodes text by a part of this kind, alone or in a
    sequence of parts."""
    for name in ("pre_tokenizer", "decoder"):
        part = document.get(name) or {}
        parts = part.get("pretokenizers") or part.get("decoders") or [part]
        if any(inner.get("type") == kind for inner in parts):
            return True
    return False


def _special(ids: dict[str, int], name: str) -> dict[str, int]:
    """The id of each special piece by its role; raises DataError if one is missing."""
    special = {}
    for role, names in _NAMES.items():
        token = _first_id(ids, names)
        if token is None:
            piece = f"[{role.upper()}]"
            expected = " or ".join(names)
            raise DataError(
                f"{name}: a tokenizer.json with BPE without a piece for {piece}: expected "
                f"{expected}"
            )
        special[role] = token
    unknown = _first_id(ids, _UNKNOWN)
    if unknown is None:
        unknown = special["pad"]
    special["unk"] = unknown
    return special


def _first_id(ids: dict[str, int], names: Iterable[str]) -> int | None:
    """The id of the first of some pieces that there is."""
    for name in names:
        if name in ids:
            return ids[name]
    return None


def _byte_characters() -> dict[str, int]:
    """GPT-2's character for each byte: itself if it is printed, else one from U+0100 on."""
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters = {}
    substitute = 0x100
    for byte in range(0x100):
        code = byte
        if byte not in printed:
            code = substitute
            substitute += 1
        character = chr(code)
        characters[character] = byte
    return characters


_BYTES = _byte_characters()


def _bytes_of(piece: str) -> bytes:
    """The bytes that a piece over bytes stands for."""
    content = bytearray()
    for character in piece:
        if character in _BYTES:
            content.append(_BYTES[character])
        else:
            content += utf8(character)
    return bytes(content)
