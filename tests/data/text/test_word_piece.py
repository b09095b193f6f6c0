import csv
import json
import lzma
import pickle
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.data.text.tokenizer import Tokenizer, report_unknown
from gmlp_flax.errors import DataError, RunError
from tests.failures import raised

library = pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
PIECES = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cafe",
    "##s",
    "is",
    ".",
    "old",
    "b",
]


def vocabulary(pieces) -> bytes:
    return ("\n".join(pieces) + "\n").encode()


@pytest.fixture
def tokenizer():
    return Tokenizer(vocabulary(PIECES))


def test_uncased(tokenizer):
    assert tokenizer.vocab_size == 13 and tokenizer.special_ids == (0, 2, 3, 4, 5)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id) == (0, 2, 3)
    assert (tokenizer.sep_id, tokenizer.mask_id) == (4, 5)
    assert tokenizer.encode("The Cafés is\n\told.") == [6, 7, 8, 9, 11, 10]
    assert tokenizer.encode("the zebra [SEP]") == [6, 2, 2, 2, 2]
    assert tokenizer.decode([3, 6, 7, 8, 9, 11, 10, 4, 0]) == "the cafes is old."
    assert [tokenizer.piece(i) for i in (6, 8, 5)] == [" the", "s", "[MASK]"]
    # as editors save it
    assert Tokenizer(b"\xef\xbb\xbf" + vocabulary(PIECES)).special_ids == tokenizer.special_ids


def test_bytes_of_pieces(tokenizer):
    """No space is counted before a punctuation mark."""
    ids = tokenizer.encode("the cafes is old.")
    assert tokenizer.byte_counts()[ids].sum() == len(" the cafes is old.")


def test_offsets(tokenizer):
    text = "The  Cafe\u0301s\u00ad is\n😀old \ud800."
    ids, spans = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text) and (ids.dtype, spans.dtype) == ("int32", "int32")
    found = [text[start:stop] for start, stop in spans]
    assert (
        found[:2] == ["The", "Cafe"]
        and found[2][-1:] == "s"
        and found[3:] == ["is", "😀old", "\ud800", "."]
    )
    assert tokenizer.encode_with_offsets(" ")[1].shape == (0, 2)


def test_cased():
    tokenizer = Tokenizer(vocabulary([*PIECES, "The", "café"]))
    assert tokenizer.encode("The the café Old") == [13, 6, 14, 2]


def test_masks(tokenizer):
    assert tokenizer.encode_masked("The [MASK] is [MASK][MASK].") == [6, 5, 9, 5, 5, 10]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([piece for piece in PIECES if piece != "[MASK]"], r"v.txt: .*\[MASK\]"),
        ([*PIECES, "is"], "v.txt: the piece 'is'"),
    ],
)
def test_damaged(tmp_path, pieces, message):
    (tmp_path / "v.txt").write_bytes(vocabulary(pieces))
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path / "v.txt")


def test_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "gmlp_flax[wordpiece]" in raised(RunError, Tokenizer, vocabulary(PIECES))


ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = {
    "ko": "나는 오늘 Seoul 학교에 갔다.",
    "de": "Sie möchte über die Brücke, schon schön; STRASSE Straße aber nicht zurück.",
    "ja": "かぎ パン がっこう ガラス 東京",
    "hi": "मैं आज स्कूल गया था",
    "zh": "我们在北京,学习。",
}


def pieces_of(lower, strip):
    """Words of all languages as the library normalises them, and their letters."""
    normalizer = library.normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    words = {word for text in TEXTS.values() for word in normalizer.normalize_str(text).split()}
    letters = {letter for word in words for letter in word}
    return [*ROLES, *sorted(words | letters | {f"##{letter}" for letter in letters})]


def reference(pieces, lower, strip):
    """The tokenizer of the library alone."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    made = library.Tokenizer(library.models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = library.normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    made.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(ROLES)
    made.post_processor = library.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def assert_same_ids(texts, ours, theirs):
    """Of a batch of texts."""
    texts = [*texts]
    expected = [encoding.ids for encoding in theirs.encode_batch(texts, add_special_tokens=False)]
    for text, found, ids in zip(texts, ours.encode_batch(texts, threads=1), expected, strict=True):
        assert found.tolist() == ids, text


def write(folder, pieces, **jsons):
    (folder / "vocab.txt").write_bytes(vocabulary(pieces))
    for name, content in jsons.items():
        (folder / f"{name}.json").write_text(
            content if isinstance(content, str) else json.dumps(content)
        )
    return folder / "vocab.txt"


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("lower", "strip"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_equal_to_the_library(tmp_path, lower, strip, form):
    """By keys, by tokenizer_config.json, by tokenizer.json beside and given, by a folder, and as
    stored in a run."""
    pieces = pieces_of(True, True)
    expected = reference(pieces, lower, strip)
    folders = [tmp_path / name for name in ("keys", "config", "json")]
    for folder in folders:
        folder.mkdir()
    keys, config, whole = folders
    loaded = [
        Tokenizer.load(write(keys, pieces), do_lower_case=str(lower), strip_accents=str(strip)),
        Tokenizer.load(
            write(config, pieces, tokenizer_config={"do_lower_case": lower, "strip_accents": strip})
        ),
        Tokenizer.load(write(whole, pieces, tokenizer=expected.to_str())),
        Tokenizer.load(whole / "tokenizer.json"),
        Tokenizer.load(whole),
    ]
    assert all(one == loaded[0] for one in loaded) and loaded[0].cases == (lower, strip)
    loaded[0].save(tmp_path / "tokenizer.model")
    for one in (
        *loaded,
        Tokenizer.load(tmp_path / "tokenizer.model"),
        pickle.loads(pickle.dumps(loaded[0])),
    ):
        assert_same_ids(
            [unicodedata.normalize(form, text) for text in TEXTS.values()], one, expected
        )


@pytest.mark.parametrize(
    ("lower", "strip", "added", "guess"),
    [
        (True, True, (), (True, True)),
        (True, False, (), (True, False)),
        (False, False, (), (False, False)),
        (True, True, ("[UNUSED1]", "A", "##B", "[unused2]", "COVID"), (True, True)),
    ],
)
def test_the_guess(tmp_path, lower, strip, added, guess):
    tokenizer = Tokenizer.load(write(tmp_path, [*pieces_of(lower, strip), *added]))
    assert (
        tokenizer.cases == guess
        and "guessed" in tokenizer.note
        and "config.data.strip_accents" in tokenizer.note
    )
    for text in TEXTS.values():
        assert tokenizer.unk_id not in tokenizer.encode(text)


def test_old_copies_in_run_folders_keep_their_reading(tmp_path):
    """A copy is read as version 0.2.0 read it, also under the keys' defaults."""
    pieces = pieces_of(True, False)
    (tmp_path / "tokenizer.model").write_bytes(vocabulary(pieces))
    for old in (Tokenizer(vocabulary(pieces)), Tokenizer.load(tmp_path / "tokenizer.model")):
        assert old.cases == (True, True) and old.model == vocabulary(pieces)
    assert Tokenizer(vocabulary([*pieces, "New"])).cases == (False, False)
    with pytest.raises(
        DataError,
        match="strip_accents is False, but of .*tokenizer.model its strip_accents is True",
    ):
        Tokenizer.load(tmp_path / "tokenizer.model", strip_accents="False")


def test_files_beside_with_the_vocabularys_own_name(tmp_path):
    pieces = pieces_of(True, False)
    (tmp_path / "ko_vocab.txt").write_bytes(vocabulary(pieces).replace(b"\n", b"\r\n"))
    (tmp_path / "ko_tokenizer.json").write_text(reference(pieces, False, True).to_str())
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    tokenizer = Tokenizer.load(tmp_path / "ko_vocab.txt")
    assert tokenizer.cases == (False, True) and "ko_tokenizer.json" in tokenizer.note


@pytest.mark.parametrize("end", [" \n", "\t\n", "\r\n", " \r\n", "\u00a0\n"])
def test_blanks_and_marks_around_lines(tmp_path, end):
    """A piece with a blank at its end would never be found, without a word."""
    pieces = pieces_of(True, True)
    (tmp_path / "vocab.txt").write_bytes(
        ("\ufeff" + "".join(piece + end for piece in pieces)).encode()
    )
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
    assert_same_ids(TEXTS.values(), tokenizer, reference(pieces, True, True))
    marked = [one if one in ROLES else f"\ufeff{one}" for one in pieces]  # of files put together
    assert Tokenizer(vocabulary(marked)).same_pieces(tokenizer)


@pytest.mark.parametrize("value", ["true", "True", "False", "false"])
def test_a_config_whose_values_are_text(tmp_path, value):
    path = write(
        tmp_path,
        pieces_of(True, False),
        tokenizer_config={"do_lower_case": value, "strip_accents": "false"},
    )
    assert Tokenizer.load(path).cases == (value.lower() == "true", False)


@pytest.mark.parametrize(("lower", "strip"), [(True, False), (False, True)])
def test_a_config_that_says_one_of_the_two(tmp_path, lower, strip):
    """The other is guessed; here the guess is that accents are stripped if text is lower-cased,
    else kept."""
    pieces = pieces_of(lower, lower)
    tokenizer = Tokenizer.load(write(tmp_path, pieces, tokenizer_config={"strip_accents": strip}))
    assert tokenizer.cases == (lower, strip) and f"strip_accents={strip}" in tokenizer.note
    assert_same_ids(TEXTS.values(), tokenizer, reference(pieces, lower, strip))


def test_two_files_that_contradict_each_other(tmp_path):
    pieces = pieces_of(True, False)
    given = reference(pieces, True, False).to_str()
    path = write(tmp_path, pieces, tokenizer=given, tokenizer_config={"do_lower_case": False})
    with pytest.raises(DataError, match=r"tokenizer.json: .*True.*tokenizer_config.json: .*False"):
        Tokenizer.load(path)
    assert Tokenizer.load(path, do_lower_case="true", strip_accents="False").cases == (True, False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "BPE: expected WordPiece"),
        ({"model": {"vocab": {}, "merges": []}}, "BPE: expected WordPiece"),
        ({"model": {"type": "Unigram", "vocab": []}}, "Unigram: expected WordPiece"),
        ({"the": 0, "a": 1}, "no model: expected WordPiece"),
        ({"model": {"type": "WordPiece", "vocab": {"[UNK]": "x"}}}, "tokenizer.json"),
        ({"model": {"type": "WordPiece", "vocab": [1]}}, "damaged"),
        (
            {"model": {"type": "WordPiece", "vocab": {}, "unk_token": "<unk>"}},
            "unk_token is '<unk>'",
        ),
    ],
)
def test_a_tokenizer_of_another_kind(tmp_path, content, message):
    write(tmp_path, ROLES, tokenizer=content)
    with pytest.raises(DataError, match=message):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_config_that_splits_in_another_way(tmp_path):
    pieces = pieces_of(True, True)
    with pytest.raises(DataError, match="word_tokenizer_type is 'mecab'"):
        Tokenizer.load(write(tmp_path, pieces, tokenizer_config={"word_tokenizer_type": "mecab"}))
    chinese = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False}
    tokenizer = Tokenizer.load(write(tmp_path, [*pieces, "东京"], tokenizer_config=chinese))
    assert tokenizer.cases == (True, True) and len(tokenizer.encode("东京")) == 1


def test_added_tokens_and_other_normalizers(tmp_path):
    pieces = pieces_of(True, True)
    expected = reference(pieces, True, False)
    expected.add_tokens(["COVID-19"])
    expected.normalizer = library.normalizers.Sequence(
        [library.normalizers.NFD(), library.normalizers.Lowercase()]
    )
    tokenizer = Tokenizer.load(write(tmp_path, pieces, tokenizer=expected.to_str()))
    assert tokenizer.vocab_size == len(pieces) + 1 and tokenizer.cases is None
    text = "Die COVID-19 Brücke"
    assert tokenizer.encode(text) == expected.encode(text, add_special_tokens=False).ids
    assert len(pieces) in tokenizer.encode(text)
    with pytest.raises(DataError, match="do_lower_case must be auto"):
        Tokenizer.load(tmp_path / "vocab.txt", do_lower_case="True")


def test_the_share_of_unknown_tokens(tokenizer, capsys):
    def report(texts):
        report_unknown(
            tokenizer, [{"tokens": ids} for ids in tokenizer.encode_batch(texts)], "these texts"
        )
        return capsys.readouterr().err

    assert (
        report(["the cafe"]) == "these texts: 0.0% of the tokens of the first documents are [UNK]\n"
    )
    assert report(["the zebra is old"]).startswith("warning: these texts: 25.0% ")
    assert report(["the"] * 1000 + ["zebra"] * 5000).startswith("these texts: 0.0% ")
    assert "66.7% of the tokens" in raised(DataError, report, ["the zebra lion"])


def bert(pieces, **cases):
    """BERT's tokenizer as the library itself puts it together."""
    return library.BertWordPieceTokenizer({piece: i for i, piece in enumerate(pieces)}, **cases)


# Words of the vocabulary, text of any kind, and what BERT's cleaning, splitting and 100 letters a
# word are about.
SNIPPETS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(" ".join(TEXTS.values()).split()),
    st.sampled_from(
        [*"\u200b\u00ad\ufffd\0\x85\u3000İß-", "\t\r\n", "e\u0301", "東京", "a" * 101, "##"]
    ),
)
STRINGS = st.lists(st.tuples(SNIPPETS, st.sampled_from(["", " ", "\n"])), max_size=8).map(
    lambda parts: "".join(piece + space for piece, space in parts)
)


@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("lower", [True, False])
def test_any_string_as_bert(lower, examples):
    pieces = pieces_of(lower, lower)
    letters = [chr(code) for code in range(33, 383)]
    pieces = [*dict.fromkeys([*pieces, *letters, *(f"##{one}" for one in letters)])]
    keys = {"do_lower_case": lower, "strip_accents": lower}
    theirs = bert(pieces, lowercase=lower, strip_accents=lower)
    ours = Tokenizer(json.dumps(json.loads(theirs.to_str()) | {"padding": None}).encode())
    ours.check({key: str(value) for key, value in keys.items()}, "it")

    @settings(max_examples=examples, derandomize=True)
    @given(STRINGS)
    def compare(text):
        if not any(role in text for role in ROLES):
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids

    compare()


@pytest.mark.slow
def test_real_texts_as_bert(shared_data):
    """BERT's own vocabulary on books, reviews and sentences."""
    vocabulary_file = shared_data("tokenizers/bert_uncased_vocab.txt")
    with open(vocabulary_file, encoding="utf-8") as file:
        theirs = bert(file.read().splitlines())
    ours = Tokenizer.load(vocabulary_file)
    with open(shared_data("text/bert_sample_text.txt"), encoding="utf-8") as file:
        assert_same_ids(file.read().splitlines(), ours, theirs)
    with open(shared_data("glue/sst2_dev.tsv"), encoding="utf-8") as file:
        assert_same_ids(
            [row[0] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)],
            ours,
            theirs,
        )
    for name in ("text/books_130.jsonl.xz", "text/imdb_train.jsonl.xz", "glue/rte.jsonl.xz"):
        with lzma.open(shared_data(name), "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line, _ in zip(file, range(300), strict=False)]
        texts = [value[:20_000] for row in rows for value in row.values() if isinstance(value, str)]
        assert_same_ids(texts, ours, theirs)


@pytest.mark.parametrize(("lower", "strip"), [(True, True), (True, False), (False, False)])
def test_what_is_written_as_tokenizer_json(tmp_path, lower, strip):
    """The library reads it, with [CLS] a [SEP] b [SEP]; and it is read here as it was."""
    keys = {"do_lower_case": str(lower), "strip_accents": str(strip)}
    ours = Tokenizer.load(write(tmp_path, pieces_of(True, False)), **keys)
    ours.save(tmp_path / "tokenizer.json")
    path = tmp_path / "tokenizer.json"
    read, theirs = Tokenizer.load(path), library.Tokenizer.from_file(str(path))
    assert (
        read.cases == ours.cases and read.vocab_size == theirs.get_vocab_size() == ours.vocab_size
    )
    for text in TEXTS.values():
        ids = ours.encode(text)
        assert read.encode(text) == ids
        pair = theirs.encode(text, "a")
        assert pair.ids == [ours.cls_id, *ids, ours.sep_id, *ours.encode("a"), ours.sep_id]
        assert np.flatnonzero(pair.type_ids).tolist() == list(range(len(ids) + 2, len(pair.ids)))
        assert theirs.encode("[MASK]", add_special_tokens=False).ids == [ours.mask_id]
        assert theirs.decode(pair.ids[: len(ids) + 2]) == ours.decode(ids)
    ours.save(tmp_path / "tokenizer.model")
    assert (tmp_path / "tokenizer.model").read_bytes() == ours.model


def test_tokens_that_only_another_file_has(tmp_path):
    pieces = pieces_of(True, True)
    path = write(tmp_path, pieces, added_tokens={"[PAD]": 0})
    assert Tokenizer.load(path).vocab_size == len(pieces)
    write(tmp_path, pieces, added_tokens={"[PAD]": 0, "<new>": len(pieces)})
    assert "added_tokens.json adds '<new>' (1 in all): give a tokenizer.json" in raised(
        DataError, Tokenizer.load, path
    )
