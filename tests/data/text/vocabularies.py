"""WordPiece vocabularies, and the tokenizers that the tokenizers library makes from them."""

import json

import pytest

library = pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")

ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(pieces) -> bytes:
    """A vocab.txt."""
    return ("\n".join(pieces) + "\n").encode()


TEXTS = {
    "ko": "나는 오늘 Seoul 학교에 갔다.",
    "de": "Sie möchte über die Brücke, schon schön; STRASSE Straße aber nicht zurück.",
    "ja": "かぎ パン がっこう ガラス 東京",
    "hi": "मैं आज स्कूल गया था",
    "zh": "我们在北京,学习。",
}


def pieces_of(lower, strip):
    """The words of all texts as the library normalizes them, and their letters."""
    normalizer = library.normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    words = set()
    for text in TEXTS.values():
        words |= set(normalizer.normalize_str(text).split())
    letters = set("".join(words))
    continued = {f"##{letter}" for letter in letters}
    return [*ROLES, *sorted(words | letters | continued)]


def reference(pieces, lower, strip):
    """The library's own tokenizer."""
    ids = {piece: number for number, piece in enumerate(pieces)}
    model = library.models.WordPiece(ids, unk_token="[UNK]")
    made = library.Tokenizer(model)
    made.normalizer = library.normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(ROLES)
    sep = ("[SEP]", 3)
    cls = ("[CLS]", 2)
    made.post_processor = library.processors.BertProcessing(sep, cls)
    return made


def assert_special_ids(tokenizer) -> None:
    """Asserts that the special pieces have the first ids, as in each vocabulary here."""
    assert tokenizer.special_ids == (0, 1, 2, 3, 4)
    assert tokenizer.pad_id == 0
    assert tokenizer.unk_id == 1
    assert tokenizer.cls_id == 2
    assert tokenizer.sep_id == 3
    assert tokenizer.mask_id == 4


def assert_same_ids(texts, ours, theirs):
    texts = list(texts)
    encodings = theirs.encode_batch(texts, add_special_tokens=False)
    found = ours.encode_batch(texts, threads=1)
    for text, ids, encoding in zip(texts, found, encodings, strict=True):
        assert ids.tolist() == encoding.ids, text


def write(folder, pieces, **jsons):
    """Writes a vocab.txt and JSON files into a folder, and returns the path of the vocab.txt."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes(vocabulary(pieces))
    for name, content in jsons.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / f"{name}.json").write_text(text)
    return folder / "vocab.txt"
