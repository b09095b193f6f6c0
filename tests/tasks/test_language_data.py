"""Where a language model's text comes from: files, splits, prepared folders, tokenizers, mixtures;
and what is said of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.dataset import line_of
from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.text import prepare
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import ConfigError
from gmlp_flax.tasks.causal_lm import CausalData
from gmlp_flax.tasks.data import RunFiles
from gmlp_flax.tasks.language_data import LanguageData
from tests.data import writers
from tests.failures import failure, raised
from tests.training import tiny

LINES = [f"{' '.join(tiny.WORDS[i % 7 : i % 40 + 5])} and {i} more." for i in range(80)]
OTHER = [f"{' '.join(tiny.WORDS[: i % 30 + 9])} or {i} less." for i in range(50)]

FOLDED = "note: the tokenizer reads any line breaks, tabs and blanks between words as one blank"


@pytest.fixture
def config(tmp_path):
    """Of tiny.text_config, its data to be given."""
    options = tiny.text_config(tmp_path)
    options.data.train = ""
    return options


def write_lines(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(writers.json_lines(*({"text": text} for text in texts)))
    return path


def stream(data: LanguageData, role: str) -> list[int]:
    """All ids of a role, [SEP] after each document."""
    tokens = data.windows(role).prepared
    return tokens.read(0, tokens.tokens).tolist()


def ids(data: LanguageData, texts: list[str]) -> list[int]:
    """The slow way to the same."""
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
    assert stream(data, TRAIN) == ids(data, LINES[:60])
    assert stream(data, HELDOUT) == ids(data, LINES[60:])


def test_splits_of_tfds(config, tmp_path, monkeypatch):
    """C4 by its name, as configs/ give it: train and validation."""
    texts = {"train": [LINES[:30], LINES[30:60]], "validation": [LINES[60:]]}
    splits = {}
    for name, parts in texts.items():
        splits[name] = [[writers.example(text=text.encode()) for text in part] for part in parts]
    writers.tfds_folder(tmp_path / "c4" / "en" / "3.0.1", splits, "array_record")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config.data.train = "tfds:c4/en"
    data = LanguageData(config)
    assert stream(data, TRAIN) == ids(data, LINES[:60])
    assert stream(data, HELDOUT) == ids(data, LINES[60:])


def test_embedded_text_and_a_corpus(config, tmp_path):
    """Either role may have the embedded text, the other a file."""
    own = str(write_lines(tmp_path / "own.jsonl", LINES))
    config.data.update(train=own, heldout="embedded")
    data = LanguageData(config)
    assert data.windows(HELDOUT).prepared.documents == len(embedded_text(HELDOUT))
    config.data.update(train="embedded", heldout=own, tokenizer=str(tmp_path / "own.model"))
    data.tokenizer.save(config.data.tokenizer)
    assert stream(LanguageData(config), HELDOUT) == ids(data, LINES)


def test_a_search_shares_the_embedded_text_to_train_on(config):
    config.data.update(train="embedded", search=True, tokenizer="bytes", heldout_share=0.2)
    data = LanguageData(config)
    found = {role: set(data.corpus(role).examples.read()) for role in ROLES}
    assert found[HELDOUT]
    assert not found[TRAIN] & found[HELDOUT]
    assert found[TRAIN] | found[HELDOUT] < set(embedded_text(TRAIN))


def test_a_mixture(config, tmp_path):
    """Another corpus with a share of the examples: not of the vocabulary, and not held out."""
    own = write_lines(tmp_path / "a.jsonl", LINES)
    other = write_lines(tmp_path / "b.jsonl", OTHER)
    config.data.update(train=str(own), heldout_share=0.2)
    plain = LanguageData(config)
    config.data.mixture = (f"{other}=0.25",)
    mixed = LanguageData(config)
    assert mixed.tokenizer == plain.tokenizer
    assert stream(mixed, HELDOUT) == stream(plain, HELDOUT)
    with mixed.train_batches(0, 0, 1) as batches:
        index = np.concatenate([next(batches)["index"] for _ in range(8)])
    assert (index >= len(mixed.windows(TRAIN))).sum() == len(index) / 4
    [note] = [line for line in mixed.notes() if line.startswith("mixture")]
    assert f"25 % of the examples from {other}" in note
    assert mixed.fingerprint(TRAIN)["files"] == 2
    assert mixed.fingerprint(HELDOUT) == plain.fingerprint(HELDOUT)
    np.testing.assert_array_equal(mixed.token_counts, plain.token_counts)


def test_a_mixture_with_text_in_memory_is_recognised(config, tmp_path):
    other = write_lines(tmp_path / "b.jsonl", OTHER)
    config.data.update(train="embedded", tokenizer="bytes")
    plain = LanguageData(config).fingerprint(TRAIN)
    config.data.mixture = (f"{other}=0.25",)
    mixed = LanguageData(config).fingerprint(TRAIN)
    assert mixed.keys() - plain.keys() == {"mixture"}


def test_mixtures_that_cannot_be_are_refused(config, tmp_path):
    config.data.update(train=str(write_lines(tmp_path / "a.jsonl", LINES)))
    config.data.mixture = (f"{tmp_path / 'nothing'}=0.25",)
    data = LanguageData(config)
    assert failure(lambda: data.further).startswith("config.data.mixture: ")
    config.data.mixture = ("b.jsonl=1",)
    assert "b.jsonl=1" in raised(ConfigError, gmlp_config.validate, config)


@pytest.fixture
def prepared(tmp_path):
    """A folder with a corpus, and with both roles of it, prepared with one tokenizer."""
    corpus = text_reader.read(str(write_lines(tmp_path / "raw.jsonl", LINES)))[""]
    tokenizer = Tokenizer.train(corpus.hold_out(TRAIN, 0.2).examples.read(), 320)
    for role in ROLES:
        limits = prepare.Limits(workers=1)
        prepare.prepare(corpus.hold_out(role, 0.2), tokenizer, tmp_path / role, limits)
    return tmp_path


def test_prepared_folders_are_the_raw_corpus(config, prepared):
    config.data.update(train=str(prepared / TRAIN), heldout=str(prepared / HELDOUT))
    data = LanguageData(config)
    config.data.update(train=str(prepared / "raw.jsonl"), heldout="")
    raw = LanguageData(config)
    assert data.tokenizer == raw.tokenizer
    for role in ROLES:
        windows = data.windows(role)
        expected = raw.windows(role)
        assert len(windows) == len(expected) > 5
        np.testing.assert_array_equal(
            windows.windows(0, len(windows)), expected.windows(0, len(windows))
        )


def test_lines_of_prepared_folders(config, prepared):
    """Each says where it lies; its tokens are counted as they are."""
    config.data.update(train=str(prepared / TRAIN), heldout=str(prepared / HELDOUT))
    data = LanguageData(config)
    [line] = data.lines(TRAIN)
    assert "gmlp prepare" in line
    documents = data.windows(HELDOUT).prepared.documents
    assert data.tokens(HELDOUT).examples == documents
    assert data.summary(HELDOUT).path == str(prepared / HELDOUT)
    assert data.fingerprint(TRAIN)["files"] == 1
    assert data.fingerprint(TRAIN) != data.fingerprint(HELDOUT)
    assert data.notes()[0] == FOLDED


def test_prepared_tokens_without_what_is_held_out(config, prepared):
    config.data.train = str(prepared / TRAIN)
    message = failure(LanguageData(config).evaluation_examples)
    assert f"config.data.train={prepared}/train holds prepared tokens" in message


def test_tokenizers_of_both_prepared_roles_must_be_one(config, prepared):
    corpus = text_reader.read(str(prepared / "raw.jsonl"))[""]
    other = Tokenizer.train(LINES[:20], 310)
    prepare.prepare(corpus, other, prepared / "more", prepare.Limits(workers=1))
    config.data.update(train=str(prepared / TRAIN), heldout=str(prepared / "more"))
    data = LanguageData(config)
    message = failure(lambda: data.tokenizer)
    assert "config.data.train, " in message
    assert "config.data.heldout, " in message
    # Beside raw text there is but one.
    config.data.heldout = str(write_lines(prepared / "own.jsonl", LINES[:9]))
    data = LanguageData(config)
    assert stream(data, HELDOUT) == ids(data, LINES[:9])


def test_the_runs_tokenizer_comes_before_one_that_is_trained(config, tmp_path):
    config.data.train = str(write_lines(tmp_path / "own.jsonl", LINES))
    trained = LanguageData(config).tokenizer
    other = Tokenizer.train(LINES[:20], 310)
    assert trained != other
    for files in (
        RunFiles(own={TOKENIZER_FILE: other.model}),
        RunFiles(inherited={TOKENIZER_FILE: other.model}),
    ):
        assert LanguageData(config, files).tokenizer == other


def test_bad_records_are_passed_over_and_reported(config, tmp_path, capsys):
    """The text is that of the other records; the report comes again where the tokens were
    cached."""
    whole = write_lines(tmp_path / "whole.jsonl", LINES)
    spoiled = tmp_path / "spoiled.jsonl"
    lines = whole.read_text().split("\n")
    spoiled.write_text("\n".join([*lines[:4], "[3]", *lines[4:]]))
    config.data.train = str(whole)
    expected = stream(LanguageData(config), TRAIN)
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in told] == ["training", "tokenising"]

    report = f"{spoiled}: 1 bad record skipped, the first: {spoiled}, line 5: "
    config.data.update(train=str(spoiled), max_bad_records=1)
    for _ in range(2):
        assert stream(LanguageData(config), TRAIN) == expected
        assert report in capsys.readouterr().err
    config.data.max_bad_records = 0
    message = failure(LanguageData(config).windows, TRAIN)
    assert message.startswith(f"config.data.train: {spoiled}, line 5: ")
    config.data.update(train=str(whole), mixture=(f"{spoiled}=0.25",), max_bad_records=1)
    capsys.readouterr()
    assert LanguageData(config).further
    assert report in capsys.readouterr().err


def test_lines_and_summary_of_a_corpus(config, shards):
    """Documents are not counted before they are tokenised; tokens are those of the first."""
    config.data.train = str(shards)
    data = LanguageData(config)
    [line] = data.lines(TRAIN)
    for fact in ("train: text", "split 'train'", "2 files"):
        assert fact in line
    summary = data.summary(HELDOUT)
    assert (summary.role, summary.split, summary.examples) == (HELDOUT, "validation", None)
    assert summary.units == "documents"
    assert summary.shown == tuple(line_of(text) for text in LINES[60:63])
    assert summary.size == sum(file.size for file in data.corpus(HELDOUT).files)
    lengths = [len(data.tokenizer.encode(text)) for text in LINES[60:]]
    tokens = summary.tokens
    assert (tokens.examples, tokens.shortest, tokens.longest) == (20, min(lengths), max(lengths))
    assert tokens.median == int(np.median(lengths))
    assert tokens.unknown == tokens.cut == 0
    assert data.notes()[0] == FOLDED


def test_a_file_of_both_roles_is_refused(config, tmp_path):
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
    heldout = write_lines(tmp_path / "heldout.jsonl", [*OTHER[:15], *LINES[:5]])
    config.data.update(train=str(train), heldout=str(heldout))
    [_, note] = LanguageData(config).notes()
    assert "5 of 20" in note


def test_held_out_passages_of_documents_to_train_on(config, tmp_path):
    """Neither side has a document of the other."""
    text = " ".join(LINES)
    train = write_lines(tmp_path / "train.jsonl", [text, *OTHER])
    heldout = write_lines(tmp_path / "heldout.jsonl", [" ".join(LINES[20:40])])
    config.data.update(train=str(train), heldout=str(heldout))
    [_, note] = LanguageData(config).notes()
    assert "(100.0%)" in note
    write_lines(tmp_path / "heldout.jsonl", [" ".join(reversed(text.split()))])
    assert LanguageData(config).notes() == [FOLDED]


def test_as_many_heldout_sequences_as_are_asked_for(config, shards):
    config.data.train = str(shards)
    whole = LanguageData(config)
    count = whole.evaluation_examples()
    config.eval.examples = 3
    some = LanguageData(config)
    assert some.evaluation_examples() == 3
    assert some.training_examples() == whole.training_examples()
    index = [int(some.examples(HELDOUT)[number]["index"]) for number in range(3)]
    assert index == [0, count // 3, 2 * count // 3]


def test_windows_of_a_causal_model_have_a_token_more_and_no_sep(config, tmp_path):
    """A window holds parts of several documents; the last ends with the text."""
    path = write_lines(tmp_path / "text.jsonl", ["abc", "d", "efghijk"])
    config.model.length = 6
    config.data.update(train=str(path), heldout=str(path), tokenizer="bytes")
    data = CausalData(config)
    letters = {"[CLS]": "<", "[SEP]": ">", "[PAD]": "_"}
    texts = []
    for index in range(data.evaluation_examples()):
        pieces = [data.tokenizer.piece(token) for token in data.windows(HELDOUT)[index]["tokens"]]
        texts.append("".join(letters.get(piece, piece) for piece in pieces))
    assert texts == ["<abc>d>", "<efghij", "<k>____"]


def test_a_text_that_is_too_short_names_the_length(config, tmp_path):
    path = write_lines(tmp_path / "short.jsonl", ["a"])
    config.data.update(train=str(path), heldout=str(path), tokenizer="bytes")
    config.model.length = 2
    message = failure(LanguageData(config).windows, TRAIN)
    assert message.startswith("config.data.train: ")
    assert "config.model.length" in message


def test_missing_data_are_named(config):
    assert "--config.data.train=PATH" in failure(LanguageData(config).dataset, TRAIN)


def test_an_example_of_a_program_is_a_document(config):
    assert json.dumps(LanguageData.row(config, ["a text"], None, "")) == '{"text": "a text"}'
    assert "bytes" in failure(LanguageData.row, config, [b"a text"], None, "")
    message = failure(LanguageData.row, config, ["id 7", "a text"], None, "")
    for key in ("2 inputs", "'id 7'", "expected one text"):
        assert key in message
