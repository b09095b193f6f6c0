"""Damaged corpora and vocabularies: one line that names the file, the record and the remedy, before the first step."""

from __future__ import annotations

import gzip
import io
import lzma
from pathlib import Path

import pytest
import sentencepiece

from gmlp_flax.data.text.tokenizer import Tokenizer
from tests import preloaded
from tests.data import writers
from tests.runs.command import assert_done, assert_only_one_line
from tests.training import tiny

TEXTS = [f"{' '.join(tiny.WORDS[i % 9 : i % 30 + 8])} and {i} more" for i in range(60)]
LINES = writers.json_lines(*({"text": text} for text in TEXTS))
GZIPPED = gzip.compress(LINES)
LATIN = '{"text": "un café"}\n'.encode("latin-1")
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *tiny.WORDS]


@pytest.fixture
def refused(commands, text, tmp_path):
    """Asserts that a run of a corpus (and other keys of data.*) ends in one line before it does anything."""

    def check(train: Path | str, *words: str, vocab_size: int = 320, environment: dict | None = None, **keys: object):
        keys = {"train": train, "cache": tmp_path / "cache", **keys}
        flags = [f"--config.model.vocab_size={vocab_size}", *(f"--config.data.{key}={keys[key]}" for key in keys)]
        result = commands(text, *flags, f"--workdir={tmp_path / 'run'}", **(environment or {}))
        assert_only_one_line(result, *words)
        for name in ("metrics.jsonl", "config.json", "checkpoints", "result.json"):
            assert not (tmp_path / "run" / name).exists()

    return check


def with_bad(number: int, bad: bytes) -> bytes:
    """The corpus with a bad line before the line of this number, which counts from 0."""
    lines = LINES.splitlines(keepends=True)
    return b"".join([*lines[:number], bad, *lines[number:]])


# File name -> its bytes, and what the one line has to say after the path of the file.
FILES = {
    "truncated.json.gz": (GZIPPED[:-100], ["truncated or not a .gz archive", "copy or download it again"]),
    "damaged.json.gz": (GZIPPED[:200] + bytes(50) + GZIPPED[250:], ["truncated or not a .gz", "download it again"]),
    "truncated.jsonl.xz": (lzma.compress(LINES)[:-100], ["truncated or not a .xz archive", "download it again"]),
    "latin.txt": ("one\ntwo\ncafé\n".encode("latin-1"), [", line 3: not UTF-8 (byte 0xe9)", "iconv -t UTF-8"]),
    "utf16.txt": ("\n".join(TEXTS).encode("utf-16"), [": not UTF-8 (a zero byte, as UTF-16 has)", "iconv -t UTF-8"]),
    "utf16.jsonl": (LINES.decode().encode("utf-16"), [", line 1: not UTF-8", "iconv -t UTF-8", "max_bad_records=0"]),
    "latin.jsonl": (with_bad(2, LATIN), [", line 3: not UTF-8 (byte 0xe9)", "iconv -t UTF-8", "max_bad_records=0"]),
    "no_json.jsonl": (with_bad(7, b'{"text": \n'), [", line 8: not JSON", "expected one object per line", "or raise"]),
    "no_text.jsonl": (with_bad(60, b'{"body": 1}\n'), [", line 61: found fields 'body'; expected an object with"]),
    "empty.jsonl": (b"", ["an empty shard, of zero bytes; copy or prepare it again, or remove it"]),
    "blank.json.gz": (gzip.compress(b"\n\n"), ["an empty shard, no document in it; copy or prepare it again"]),
    "not_parquet.parquet": (LINES, ["truncated, damaged or not parquet", "copy or download it again"]),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_file(refused, tmp_path, name):
    content, words = FILES[name]
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, f"config.data.train: {tmp_path / name}", *words)


def test_one_bad_shard_of_several(refused, tmp_path):
    """It is the one that is named; the other shards are whole."""
    folder = tmp_path / "c4"
    folder.mkdir()
    for number in range(3):
        content = GZIPPED[:-50] if number == 1 else GZIPPED
        (folder / f"c4-train.0000{number}-of-00003.json.gz").write_bytes(content)
    (folder / "c4-validation.00000-of-00001.json.gz").write_bytes(GZIPPED)
    shard = folder / "c4-train.00001-of-00003.json.gz"
    refused(folder, f"config.data.train: {shard}: truncated or not a .gz archive")
    shard.write_bytes(b"")
    refused(folder, f"{shard}: an empty shard, of zero bytes; copy or prepare it again")
    shard.unlink()
    refused(folder, "of the 3 shards of 'c4-train', 00001-of-00003 is missing; copy the rest")


def test_damaged_text_to_hold_out(refused, tmp_path):
    (tmp_path / "train.jsonl").write_bytes(LINES)
    (tmp_path / "heldout.json.gz").write_bytes(GZIPPED[:-100])
    words = [f"config.data.heldout: {tmp_path / 'heldout.json.gz'}: truncated", "copy or download it again"]
    refused(tmp_path / "train.jsonl", *words, heldout=tmp_path / "heldout.json.gz")


def test_record_of_tfds_that_fails_its_checksum(refused, tmp_path):
    folder = tmp_path / "c4" / "en" / "3.0.1"
    examples = [writers.example(text=text.encode()) for text in TEXTS]
    writers.tfds_folder(folder, {"train": [examples[:40]], "validation": [examples[40:]]}, "tfrecord")
    path = folder / "c4-train.tfrecord-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[content.find(TEXTS[5].encode()) + 3] ^= 1
    path.write_bytes(content)
    refused(folder, f"config.data.train: {path}, record 5: fails its checksum", "max_bad_records=0", "raise the limit")


@pytest.fixture
def spoiled(tmp_path):
    """A corpus whose lines 5 and 9 do not parse."""
    path = tmp_path / "spoiled.jsonl"
    path.write_bytes(with_bad(4, b"[]\n").replace(TEXTS[7].encode() + b'"}', TEXTS[7].encode()))
    return path


@pytest.mark.parametrize(("limit", "line"), [(0, "line 5: found list"), (1, "line 9: not JSON")])
def test_more_bad_records_than_the_limit(refused, spoiled, limit, line):
    remedy = f"max_bad_records={limit}: mend the record or raise the limit)"
    words = [f"config.data.train: {spoiled}, {line}", f"({limit} bad records skipped before; {remedy}"]
    refused(spoiled, *words, max_bad_records=limit)


@pytest.mark.slow
def test_as_many_bad_records_as_the_limit(commands, text, spoiled, refused, tmp_path):
    """They are counted and reported with the first one's place, and the run goes on."""
    flags = [f"--config.data.train={spoiled}", "--config.data.max_bad_records=2", "--config.steps=1"]
    flags += [f"--config.data.cache={tmp_path / 'cache'}", f"--workdir={tmp_path / 'trained'}"]
    first = f"{spoiled}, line 5: found list; expected an object with a string field 'text'"
    result = commands(text, *flags)
    assert_done(result)
    reports = [line for line in result.stderr.splitlines() if "bad record" in line]
    assert reports == [f"{side} text: 2 bad record(s) skipped, the first: {first}" for side in ("heldout", "train")]
    # What was prepared with a limit is not taken with a lower one.
    refused(spoiled, f"{spoiled}, line 9: not JSON", "max_bad_records=1: mend the record", max_bad_records=1)


def sentence_pieces(**kind: object) -> bytes:
    """A model as others train it, with padding 0, end of text 1 and unknown 2 unless `kind` says otherwise."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        vocab_size=60,
        minloglevel=2,
        num_threads=1,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "hard_vocab_limit": False} | kind,
    )
    return model.getvalue()


def vocabulary(*pieces: str) -> bytes:
    return "".join(piece + "\n" for piece in pieces).encode()


TOKENIZERS = {
    "no_mask.txt": (lambda: vocabulary(*BERT[:4], *BERT[5:]), ["none is [MASK]", "give BERT's vocab.txt or"]),
    "no_cls_sep.txt": (
        lambda: vocabulary(*BERT[:2], *BERT[4:]),
        ["none is [CLS] or [SEP]", "give BERT's vocab.txt or"],
    ),
    "twice.txt": (lambda: vocabulary(*BERT, "the"), ["the piece 'the' occurs twice", "copy the vocabulary again"]),
    "no_end.model": (lambda: sentence_pieces(eos_id=-1, unk_id=1), ["no special token [SEP]", "or train one with"]),
    "no_pad.model": (lambda: sentence_pieces(pad_id=-1, unk_id=0), ["no special token [PAD]", "or train one with"]),
    "damaged.model": (lambda: sentence_pieces()[:500], ["damaged or not a SentencePiece model", "copy it again"]),
    "empty.model": (lambda: b"", ["an empty file is no tokenizer; train or copy it again"]),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizer_that_cannot_be_used(refused, tmp_path, name):
    make, words = TOKENIZERS[name]
    (tmp_path / "train.jsonl").write_bytes(LINES)
    (tmp_path / name).write_bytes(make())
    refused(tmp_path / "train.jsonl", f"{tmp_path / name}: ", *words, tokenizer=tmp_path / name)


def test_vocabulary_larger_than_the_embedding(refused, tmp_path):
    """Of either kind: the model of the run has 320 rows."""
    pytest.importorskip("tokenizers")
    (tmp_path / "train.jsonl").write_bytes(LINES)
    (tmp_path / "vocab.txt").write_bytes(vocabulary(*BERT, *(f"word{i}" for i in range(330 - len(BERT)))))
    words = ["the tokenizer has 330 pieces, config.model.vocab_size is 320: raise it, or train a smaller tokenizer"]
    refused(tmp_path / "train.jsonl", *words, tokenizer=tmp_path / "vocab.txt")


def test_vocabulary_of_prepared_tokens_larger_than_the_embedding(commands, refused, tmp_path):
    (tmp_path / "train.jsonl").write_bytes(LINES)
    flags = [str(tmp_path / "train.jsonl"), "--vocab_size=300", "--workers=1", f"--cache={tmp_path / 'cache'}"]
    assert_done(commands(*flags, f"--out={tmp_path / 'made'}", command="prepare"))
    pieces = Tokenizer.load(tmp_path / "made" / "tokenizer.model").vocab_size
    words = [f"the tokenizer has {pieces} pieces, config.model.vocab_size is {pieces - 1}: raise it, or train"]
    refused(tmp_path / "made", *words, vocab_size=pieces - 1, heldout=tmp_path / "made")


@pytest.fixture
def without(tmp_path):
    """The environment of a command that cannot import a package."""

    def hide(package: str) -> dict[str, str]:
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / f"{package}.py").write_text(f"raise ImportError('No module named {package}')\n")
        return {"PYTHONPATH": f"{tmp_path / 'hidden'}:{preloaded.ROOT}"}

    return hide


def test_bucket_without_the_extra(refused, without):
    words = [
        "reading gs://bucket/c4/index.json failed (gs:// needs a package that cannot be imported: ",
        "): pip install 'gmlp_flax[gcs]'",
    ]
    refused("gs://bucket/c4", *words, environment=without("gcsfs"))


def test_wordpiece_without_the_extra(refused, without, tmp_path):
    (tmp_path / "train.jsonl").write_bytes(LINES)
    (tmp_path / "vocab.txt").write_bytes(vocabulary(*BERT))
    words = ["a WordPiece vocabulary needs the tokenizers library; ", "[wordpiece]"]
    refused(tmp_path / "train.jsonl", *words, tokenizer=tmp_path / "vocab.txt", environment=without("tokenizers"))
