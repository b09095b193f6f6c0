"""Where a language model's text comes from: files, splits, prepared folders, tokenizers and
mixtures, and the notes on it."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.dataset import line_of
from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.text import prepare
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks.causal_lm import CausalData
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.data.language import LanguageData
from tests.data import writers
from tests.failures import failure, raised
from tests.tasks import by_hand
from tests.training import tiny


def numbered_lines(count: int) -> list[str]:
    """Different texts, none of which numbered_texts has."""
    lines = []
    for number in range(count):
        first = number % 7
        stop = number % 40 + 5
        words = " ".join(tiny.WORDS[first:stop])
        lines.append(f"{words} and {number} more.")
    return lines


def numbered_texts(count: int) -> list[str]:
    """Different texts, none of which numbered_lines has."""
    texts = []
    for number in range(count):
        words = " ".join(tiny.WORDS[: number % 30 + 9])
        texts.append(f"{words} or {number} less.")
    return texts


LINES = numbered_lines(80)
OTHER = numbered_texts(50)
FOLDED = "note: the tokenizer reads any line breaks, tabs and blanks between words as one blank"


@pytest.fixture
def config(tmp_path):
    """tiny.text_config without training data, which each test sets."""
    options = tiny.text_config(tmp_path)
    options.data.train = ""
    return options


def write_lines(path: Path, texts: list[str]) -> Path:
    """Writes a JSON object with the key "text" for each text."""
    records = []
    for text in texts:
        records.append({"text": text})
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(writers.json_lines(*records))
    return path


def stream(data: LanguageData, role: str) -> list[int]:
    """All ids of a role, with [SEP] after each document."""
    tokens = data.windows(role).prepared
    return tokens.read(0, tokens.tokens).tolist()


def ids(data: LanguageData, texts: list[str]) -> list[int]:
    """The same ids, encoded text by text."""
    found = []
    for text in texts:
        found += data.tokenizer.encode(text)
        found.append(data.tokenizer.sep_id)
    return found


@pytest.fixture
def shards(tmp_path):
    """A corpus with splits as Hugging Face names them: 50 and 10 documents to train on, 20 held
    out."""
    root = tmp_path / "shards"
    write_lines(root / "train-00000-of-00002.jsonl", LINES[:50])
    write_lines(root / "train-00001-of-00002.jsonl", LINES[50:60])
    write_lines(root / "validation-00000-of-00001.jsonl", LINES[60:])
    return root


@pytest.mark.smoke
def test_splits_in_file_names(config, shards):
    config.data.train = str(shards)
    data = LanguageData(config)
    train_ids = ids(data, LINES[:60])
    assert stream(data, TRAIN) == train_ids
    heldout_ids = ids(data, LINES[60:])
    assert stream(data, HELDOUT) == heldout_ids


def test_tfds_splits(config, tmp_path, monkeypatch):
    """C4 by its name, as in configs/: train and validation."""
    records = []
    for text in LINES:
        encoded = text.encode()
        records.append(writers.example(text=encoded))
    splits = {
        "train": [records[:30], records[30:60]],
        "validation": [records[60:]],
    }
    folder = tmp_path / "c4" / "en" / "3.0.1"
    writers.tfds_folder(folder, splits, "array_record")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config.data.train = "tfds:c4/en"
    data = LanguageData(config)
    train_ids = ids(data, LINES[:60])
    assert stream(data, TRAIN) == train_ids
    heldout_ids = ids(data, LINES[60:])
    assert stream(data, HELDOUT) == heldout_ids


def test_corpus_with_embedded_text_held_out(config, tmp_path):
    own = write_lines(tmp_path / "own.jsonl", LINES)
    config.data.update(train=str(own), heldout="embedded")
    data = LanguageData(config)
    documents = data.windows(HELDOUT).prepared.documents
    assert documents == len(embedded_text(HELDOUT))


def test_embedded_text_with_a_corpus_held_out(config, tmp_path):
    own = write_lines(tmp_path / "own.jsonl", LINES)
    config.data.update(train=str(own), heldout="embedded")
    tokenizer = LanguageData(config).tokenizer
    path = str(tmp_path / "own.model")
    tokenizer.save(path)
    config.data.update(train="embedded", heldout=str(own), tokenizer=path)
    data = LanguageData(config)
    assert data.tokenizer == tokenizer
    assert stream(data, HELDOUT) == ids(data, LINES)


def test_search_splits_the_embedded_training_text(config):
    config.data.update(train="embedded", search=True, tokenizer="bytes", heldout_share=0.2)
    data = LanguageData(config)
    train_texts = data.corpus(TRAIN).examples
    train = set(train_texts.read())
    heldout_texts = data.corpus(HELDOUT).examples
    heldout = set(heldout_texts.read())
    assert heldout
    assert not train & heldout
    embedded = set(embedded_text(TRAIN))
    assert train | heldout < embedded


@pytest.fixture
def other(tmp_path):
    """The path of another corpus."""
    return write_lines(tmp_path / "b.jsonl", OTHER)


@pytest.fixture
def plain(config, tmp_path):
    """The data of one corpus. The test then adds a mixture to the config."""
    own = write_lines(tmp_path / "a.jsonl", LINES)
    config.data.update(train=str(own), heldout_share=0.2)
    return LanguageData(config.copy_and_resolve_references())


@pytest.fixture
def mixed(config, plain, other):
    """The same with another corpus for a share of the examples."""
    config.data.mixture = (f"{other}=0.25",)
    return LanguageData(config)


def test_mixture_keeps_the_vocabulary_and_held_out_text_of_the_corpus(plain, mixed):
    assert mixed.tokenizer == plain.tokenizer
    assert stream(mixed, HELDOUT) == stream(plain, HELDOUT)
    assert mixed.fingerprint(HELDOUT) == plain.fingerprint(HELDOUT)
    assert_array_equal(mixed.token_counts, plain.token_counts)


def test_mixture_has_its_share_of_the_examples(mixed):
    indices = []
    with mixed.train_batches(0, 0, 1) as batches:
        for _ in range(8):
            batch = next(batches)
            indices.append(batch["index"])
    index = np.concatenate(indices)
    is_other = index >= len(mixed.windows(TRAIN))
    assert is_other.mean() == 1 / 4


def test_mixture_gets_a_note(mixed, other):
    [note] = [line for line in mixed.notes() if line.startswith("mixture")]
    assert f"25 % of the examples from {other}" in note
    assert mixed.fingerprint(TRAIN)["files"] == 2


def test_fingerprint_includes_a_mixture_with_embedded_text(config, other):
    config.data.update(train="embedded", tokenizer="bytes")
    plain = LanguageData(config).fingerprint(TRAIN)
    config.data.mixture = (f"{other}=0.25",)
    mixed = LanguageData(config).fingerprint(TRAIN)
    added = mixed.keys() - plain.keys()
    assert added == {"mixture"}


def test_mixture_with_a_missing_file_is_refused(config, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", LINES)
    config.data.train = str(path)
    missing = tmp_path / "nothing"
    config.data.mixture = (f"{missing}=0.25",)
    data = LanguageData(config)
    assert failure(lambda: data.mixture).startswith("config.data.mixture: ")


def test_mixture_without_room_for_the_corpus_is_refused(config, tmp_path):
    config.data.train = str(write_lines(tmp_path / "a.jsonl", LINES))
    config.data.mixture = ("b.jsonl=1",)
    assert "b.jsonl=1" in raised(ConfigError, gmlp_config.validate, config)


@pytest.fixture
def prepared(tmp_path):
    """A folder with a corpus and with both of its roles, prepared with one tokenizer."""
    raw = write_lines(tmp_path / "raw.jsonl", LINES)
    corpus = text_reader.read(str(raw))[""]
    train = corpus.hold_out(TRAIN, 0.2)
    tokenizer = Tokenizer.train(train.examples.read(), 320)
    limits = prepare.Limits(workers=1)
    for role in ROLES:
        part = corpus.hold_out(role, 0.2)
        folder = tmp_path / role
        prepare.prepare(part, tokenizer, folder, limits)
    return tmp_path


def use_prepared(config, folder: Path, heldout: str = HELDOUT) -> None:
    """Sets the prepared folders of both roles."""
    config.data.train = str(folder / TRAIN)
    config.data.heldout = str(folder / heldout)


def test_prepared_folders_equal_the_raw_corpus(config, prepared):
    use_prepared(config, prepared)
    data = LanguageData(config)
    config.data.update(train=str(prepared / "raw.jsonl"), heldout="")
    raw = LanguageData(config)
    assert data.tokenizer == raw.tokenizer
    for role in ROLES:
        windows = data.windows(role)
        expected = raw.windows(role)
        assert len(windows) == len(expected) > 5
        count = len(expected)
        found_windows = windows.windows(0, count)
        expected_windows = expected.windows(0, count)
        assert_array_equal(found_windows, expected_windows)


def test_lines_of_prepared_folders(config, prepared):
    """Each line names its folder. Its tokens are counted as they are."""
    use_prepared(config, prepared)
    data = LanguageData(config)
    [line] = data.lines(TRAIN)
    assert "gmlp prepare" in line
    documents = data.windows(HELDOUT).prepared.documents
    assert data.tokens(HELDOUT).examples == documents
    path = data.summary(HELDOUT).path
    assert path == str(prepared / HELDOUT)
    assert data.fingerprint(TRAIN)["files"] == 1
    heldout_fingerprint = data.fingerprint(HELDOUT)
    assert data.fingerprint(TRAIN) != heldout_fingerprint
    assert data.notes()[0] == FOLDED


def test_prepared_tokens_without_held_out_documents(config, prepared):
    config.data.train = str(prepared / TRAIN)
    message = failure(LanguageData(config).evaluation_examples)
    assert f"config.data.train={prepared}/train holds prepared tokens" in message


def test_prepared_roles_must_share_a_tokenizer(config, prepared):
    path = str(prepared / "raw.jsonl")
    corpus = text_reader.read(path)[""]
    other = Tokenizer.train(LINES[:20], 310)
    limits = prepare.Limits(workers=1)
    prepare.prepare(corpus, other, prepared / "more", limits)
    use_prepared(config, prepared, "more")
    data = LanguageData(config)
    message = failure(lambda: data.tokenizer)
    assert "config.data.train, " in message
    assert "config.data.heldout, " in message


def test_tokenizer_of_the_run_precedes_a_trained_one(config, tmp_path):
    path = write_lines(tmp_path / "own.jsonl", LINES)
    config.data.train = str(path)
    trained = LanguageData(config).tokenizer
    other = Tokenizer.train(LINES[:20], 310)
    assert trained != other
    local = RunFiles(local={TOKENIZER_FILE: other.model})
    inherited = RunFiles(inherited={TOKENIZER_FILE: other.model})
    for files in (local, inherited):
        assert LanguageData(config, files).tokenizer == other


def test_raw_text_uses_the_tokenizer_of_the_prepared_role(config, prepared):
    own = write_lines(prepared / "own.jsonl", LINES[:9])
    use_prepared(config, prepared, own.name)
    data = LanguageData(config)
    assert stream(data, HELDOUT) == ids(data, LINES[:9])


@pytest.fixture
def whole(tmp_path):
    """The path of a corpus."""
    return write_lines(tmp_path / "whole.jsonl", LINES)


@pytest.fixture
def spoiled(whole, tmp_path):
    """The same with a bad record in line 5."""
    path = tmp_path / "spoiled.jsonl"
    lines = whole.read_text().split("\n")
    lines.insert(4, "[3]")
    path.write_text("\n".join(lines))
    return path


def report_on(path) -> str:
    return f"{path}: 1 bad record skipped, the first: {path}, line 5: "


def test_valid_corpus_has_no_report(config, whole, capsys):
    config.data.train = str(whole)
    stream(LanguageData(config), TRAIN)
    stderr = capsys.readouterr().err
    first_words = [line.split()[0] for line in stderr.splitlines()]
    assert first_words == ["training", "tokenizing"]


def test_bad_records_are_skipped_and_reported(config, whole, spoiled, capsys):
    """The text is that of the other records. The report is repeated when the tokens come from the
    cache."""
    config.data.train = str(whole)
    expected = stream(LanguageData(config), TRAIN)
    capsys.readouterr()
    config.data.update(train=str(spoiled), max_bad_records=1)
    for _ in range(2):
        assert stream(LanguageData(config), TRAIN) == expected
        assert report_on(spoiled) in capsys.readouterr().err


def test_bad_records_are_refused(config, spoiled):
    config.data.update(train=str(spoiled), max_bad_records=0)
    message = failure(LanguageData(config).windows, TRAIN)
    assert message.startswith(f"config.data.train: {spoiled}, line 5: ")


def test_bad_records_of_a_mixture_are_reported(config, whole, spoiled, capsys):
    config.data.update(train=str(whole), max_bad_records=1)
    config.data.mixture = (f"{spoiled}=0.25",)
    assert LanguageData(config).mixture
    assert report_on(spoiled) in capsys.readouterr().err


def test_lines_and_summary_of_a_corpus(config, shards):
    """Documents are counted only when they are tokenized."""
    config.data.train = str(shards)
    data = LanguageData(config)
    [line] = data.lines(TRAIN)
    for fact in ("train: text", "split 'train'", "2 files"):
        assert fact in line
    summary = data.summary(HELDOUT)
    assert summary.role == HELDOUT
    assert summary.split == "validation"
    assert summary.examples is None
    assert summary.units == "documents"
    expected_lines = []
    for text in LINES[60:63]:
        expected_lines.append(line_of(text))
    expected = tuple(expected_lines)
    assert summary.shown == expected
    sizes = []
    for file in data.corpus(HELDOUT).files:
        sizes.append(file.size)
    assert summary.size == sum(sizes)
    assert data.notes()[0] == FOLDED


def test_file_of_both_roles_is_refused(config, tmp_path):
    path = write_lines(tmp_path / "own.jsonl", LINES)
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    config.data.update(train=str(path), heldout=str(link))
    message = failure(LanguageData(config).notes)
    assert "'link.jsonl'" not in message
    assert repr(str(link)) in message
    assert repr(str(path)) in message


def test_documents_of_both_roles_are_counted(config, tmp_path):
    train = write_lines(tmp_path / "train.jsonl", LINES)
    heldout_texts = [*OTHER[:15], *LINES[:5]]
    heldout = write_lines(tmp_path / "heldout.jsonl", heldout_texts)
    config.data.update(train=str(train), heldout=str(heldout))
    [_, note] = LanguageData(config).notes()
    assert "5 of 20" in note


def test_summary_shows_tokens_of_the_first_documents(config, shards):
    config.data.train = str(shards)
    data = LanguageData(config)
    tokens = data.summary(HELDOUT).tokens
    encoded = data.tokenizer.encode_batch(LINES[60:])
    lengths = [len(tokens_of_text) for tokens_of_text in encoded]
    assert tokens.examples == 20
    assert tokens.shortest == min(lengths)
    assert tokens.longest == max(lengths)
    median = int(np.median(lengths))
    assert tokens.median == median
    assert tokens.unknown == 0
    assert tokens.cut == 0


def test_held_out_passages_found_in_training_documents(config, tmp_path):
    """Although neither split has a whole document of the other."""
    long_document = " ".join(LINES)
    part = " ".join(LINES[20:40])
    documents = [long_document, *OTHER]
    train = write_lines(tmp_path / "train.jsonl", documents)
    heldout = write_lines(tmp_path / "heldout.jsonl", [part])
    config.data.update(train=str(train), heldout=str(heldout))
    [_, note] = LanguageData(config).notes()
    assert "(100.0%)" in note


def test_number_of_held_out_sequences_follows_the_config(config, shards):
    config.data.train = str(shards)
    whole = LanguageData(config)
    count = whole.evaluation_examples()
    config.eval.examples = 3
    some = LanguageData(config)
    assert some.evaluation_examples() == 3
    assert some.training_examples() == whole.training_examples()
    indices = []
    for example in by_hand.all_examples(some.examples(HELDOUT)):
        indices.append(int(example["index"]))
    thirds = [0, count // 3, 2 * count // 3]
    assert indices == thirds


def test_same_words_in_another_order_are_not_a_shared_passage(config, tmp_path):
    text = " ".join(LINES)
    reverse = " ".join(reversed(text.split()))
    documents = [text, *OTHER]
    train = write_lines(tmp_path / "train.jsonl", documents)
    heldout = write_lines(tmp_path / "heldout.jsonl", [reverse])
    config.data.update(train=str(train), heldout=str(heldout))
    assert LanguageData(config).notes() == [FOLDED]


def test_causal_windows_have_one_more_token_and_no_sep(config, tmp_path):
    """A window holds parts of several documents. The last one ends with the text."""
    path = write_lines(tmp_path / "text.jsonl", ["abc", "d", "efghijk"])
    config.model.length = 6
    config.data.update(train=str(path), heldout=str(path))
    config.data.tokenizer = "bytes"
    data = CausalData(config)
    letters = {"[CLS]": "<", "[SEP]": ">", "[PAD]": "_"}
    texts = []
    for window in by_hand.all_examples(data.windows(HELDOUT)):
        pieces = []
        for token in window["tokens"]:
            pieces.append(data.tokenizer.piece(token))
        text = "".join(pieces)
        for piece, letter in letters.items():
            text = text.replace(piece, letter)
        texts.append(text)
    assert texts == ["<abc>d>", "<efghij", "<k>____"]
    assert data.evaluation_examples() == 3


def test_error_for_a_short_text_names_the_length(config, tmp_path):
    path = write_lines(tmp_path / "short.jsonl", ["a"])
    config.data.update(train=str(path), heldout=str(path))
    config.data.tokenizer = "bytes"
    config.model.length = 2
    message = failure(LanguageData(config).windows, TRAIN)
    assert message.startswith("config.data.train: ")
    assert "config.model.length" in message


def test_error_for_missing_data_names_the_path(config):
    assert "--config.data.train=PATH" in failure(LanguageData(config).dataset, TRAIN)


def test_example_from_python_is_a_document(config):
    row = LanguageData.row(config, ["a text"], None, "")
    assert row == {"text": "a text"}


@pytest.mark.parametrize(
    ("inputs", "facts"),
    [
        ([b"a text"], ["bytes"]),
        (["id 7", "a text"], ["2 inputs", "'id 7'", "expected one text"]),
    ],
)
def test_example_from_python_must_be_a_document(config, inputs, facts):
    message = failure(LanguageData.row, config, inputs, None, "")
    for fact in facts:
        assert fact in message
