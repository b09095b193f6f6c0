"""Where a language model's text comes from: files, splits, prepared folders, vocabularies; and
masks that stay."""

import collections
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as gmlp_config
from gmlp_flax.data import splits
from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text import corpora, prepare, prepared
from gmlp_flax.data.text.corpora import Selection
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loading
from tests.data import writers
from tests.failures import raised
from tests.training import tiny

LINES = [f"{' '.join(tiny.WORDS[i % 7 : i % 40 + 5])} and {i} more." for i in range(80)]

OTHER = [f"{' '.join(tiny.WORDS[: i % 30 + 9])} or {i} less." for i in range(50)]


@pytest.fixture
def config(tmp_path):
    """Of tiny.text_config, its data to be given."""
    options = tiny.text_config(tmp_path)
    options.data.train = ""
    return options


def task(config, folder: str = "nowhere") -> MaskedLanguageModeling:
    return MaskedLanguageModeling(config, folder)


def write_lines(path: Path, texts: list[str]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def side(found: MaskedLanguageModeling, name: str) -> list[int]:
    """All ids of a side, [SEP] after each document."""
    tokens = found.windows(name).prepared
    return tokens.read(0, tokens.tokens).tolist()


def ids(found: MaskedLanguageModeling, texts: list[str]) -> list[int]:
    """The slow way to the same."""
    return [
        token for text in texts for token in (*found.tokenizer.encode(text), found.tokenizer.sep_id)
    ]


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
    found = task(config)
    assert side(found, "train") == ids(found, LINES[:60])
    assert side(found, "heldout") == ids(found, LINES[60:])


def test_embedded_text_and_a_corpus(config, tmp_path):
    """Either side may be the embedded text, the other a file."""
    own = str(write_lines(tmp_path / "own.jsonl", LINES))
    config.data.update(train=own, heldout="embedded")
    found = task(config)
    assert found.windows("heldout").prepared.documents == len(embedded_text("heldout"))
    config.data.update(train="embedded", heldout=own, tokenizer=str(tmp_path / "tokenizer.model"))
    found.tokenizer.save(config.data.tokenizer)
    assert side(task(config), "heldout") == ids(found, LINES)


def test_a_mixture(config, tmp_path, capsys):
    """Another corpus with a share of the examples: not of the vocabulary, and not held out; and a
    folder of its own with splits, of which the training part is read. What is said, and what a run
    recognises."""
    own, other = (
        str(write_lines(tmp_path / name, lines))
        for name, lines in (("a.jsonl", LINES), ("b.jsonl", OTHER))
    )
    config.data.update(train=own, heldout_share=0.2)
    plain = task(config)
    config.data.mixture = (f"{other}=0.25",)
    found = task(config)
    assert found.tokenizer == plain.tokenizer and side(found, "heldout") == side(plain, "heldout")
    with found.train_batches(0, 0, 1) as batches:
        index = np.concatenate([next(batches)["index"] for _ in range(8)])
    assert (index >= len(found.windows("train"))).sum() == len(index) / 4
    [note] = [line for line in found.data_notes() if line.startswith("mixture")]
    assert note.startswith(f"mixture: 25 % of the examples from {other} (")
    assert found.fingerprint("train")["files"] == 2 and found.fingerprint(
        "heldout"
    ) == plain.fingerprint("heldout")
    config.data.update(train="embedded", tokenizer=str(tmp_path / "tokenizer.model"))
    found.tokenizer.save(config.data.tokenizer)
    beside = task(config).fingerprint("train")
    config.data.mixture = ()
    assert beside.keys() - task(config).fingerprint("train").keys() == {"mixture"}
    config.data.mixture = (f"{tmp_path / 'nothing'}=0.25",)
    with pytest.raises(DataError, match=r"^config\.data\.mixture: "):
        task(config).further  # noqa: B018
    config.data.mixture = ("b.jsonl=1",)
    assert "b.jsonl=1" in raised(ConfigError, gmlp_config.validate, config)


@pytest.fixture
def both(tmp_path):
    """The two sides of a corpus, prepared with one tokenizer, and its flags of a raw run."""
    corpus = corpora.open_corpus(str(write_lines(tmp_path / "raw.jsonl", LINES)))
    tokenizer = Tokenizer.train((t for t in LINES if not splits.is_on("heldout", t, 0.2)), 320)
    for name in ("train", "heldout"):
        prepare.prepare(
            corpus, tokenizer, tmp_path / name, selection=Selection(0.2, name), workers=1
        )
    return tmp_path


def test_prepared_folders_are_the_raw_corpus(config, both):
    config.data.update(train=str(both / "train"), heldout=str(both / "heldout"))
    found = task(config)
    config.data.update(train=str(both / "raw.jsonl"), heldout="")
    raw = task(config)
    assert found.tokenizer == raw.tokenizer
    for name in ("train", "heldout"):
        one, other = found.windows(name), raw.windows(name)
        assert len(one) == len(other) > 5
        np.testing.assert_array_equal(one.windows(0, len(one)), other.windows(0, len(one)))


def test_prepared_without_what_is_held_out(config, both):
    config.data.train = str(both / "train")
    with pytest.raises(
        DataError, match=f"^config.data.train={both}/train holds prepared tokens of one side"
    ):
        task(config).evaluation_examples()


def test_tokenizers_of_both_prepared_sides_must_be_one(config, both):
    other = Tokenizer.train(LINES[:20], 310)
    prepare.prepare(corpora.open_corpus(str(both / "raw.jsonl")), other, both / "more", workers=1)
    config.data.update(train=str(both / "train"), heldout=str(both / "more"))
    with pytest.raises(
        DataError, match="two different tokenizers: .*config.data.train, .* config.data.heldout, "
    ):
        task(config)
    # beside raw text there is but one
    config.data.heldout = str(write_lines(both / "own.jsonl", LINES[:9]))
    found = task(config)
    assert side(found, "heldout") == ids(found, LINES[:9])


def test_splits_of_tfds(config, tmp_path, monkeypatch):
    """C4 by its name, as configs/ give it: train and validation."""
    shards = {"train": [LINES[:30], LINES[30:60]], "validation": [LINES[60:]]}
    for name, texts in shards.items():
        shards[name] = [[writers.example(text=text.encode()) for text in shard] for shard in texts]
    writers.tfds_folder(tmp_path / "c4" / "en" / "3.0.1", shards, "array_record")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config.data.train = "tfds:c4/en"
    found = task(config)
    assert side(found, "train") == ids(found, LINES[:60]) and side(found, "heldout") == ids(
        found, LINES[60:]
    )


def test_bad_records_are_passed_over_and_reported(config, tmp_path, capsys):
    """The text is that of the other records; the report comes again where the tokens were
    cached."""
    whole = write_lines(tmp_path / "whole.jsonl", LINES)
    spoiled = tmp_path / "spoiled.jsonl"
    lines = whole.read_text().split("\n")
    spoiled.write_text("\n".join([*lines[:4], "[3]", *lines[4:]]))
    config.data.train = str(whole)
    expected = side(task(config), "train")
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == [
        "training",
        "tokenising",
    ]
    config.data.update(train=str(spoiled), max_bad_records=1)
    for _ in range(2):
        assert side(task(config), "train") == expected
        assert (
            f"{spoiled}: 1 bad record(s) skipped, the first: {spoiled}, line 5: "
            in capsys.readouterr().err
        )
    config.data.max_bad_records = 0
    assert raised(DataError, task(config).windows, "train").startswith(
        f"config.data.train: {spoiled}, line 5: "
    )
    config.data.update(train=str(whole), mixture=(f"{spoiled}=0.25",), max_bad_records=1)
    capsys.readouterr()
    assert task(config).further
    assert (
        f"{spoiled}: 1 bad record(s) skipped, the first: {spoiled}, line 5: "
        in capsys.readouterr().err
    )


def test_the_baselines_equal_a_count_by_hand(text_run):
    """Token frequencies of the training text, on the tokens that evaluation masks; and, by a table
    of all pairs, what is known of a token if only the shown one is."""
    own = loading.load(str(text_run)).task
    special, vocabulary = set(own.tokenizer.special_ids), own.config.model.vocab_size
    stream = own.windows("train").prepared
    counts = collections.Counter(
        token for token in stream.read(0, stream.tokens).tolist() if token not in special
    )
    total = sum(counts.values()) + vocabulary - len(special)
    share = np.array(
        [(counts[token] + 1) / total if token not in special else 0 for token in range(vocabulary)]
    )
    windows, nats, floor, predictions = own.windows("heldout"), 0.0, 0.0, 0
    tokens = np.stack([windows[index]["tokens"] for index in range(len(windows))])
    masked = own.fixed_mask(
        {"tokens": tokens, "index": np.arange(len(windows), dtype=np.int32)}, own.config.eval.seed
    )
    # [target, shown]
    joint = share[:, None] * (0.1 * np.eye(vocabulary) + 0.1 / (vocabulary - len(special)))
    given = joint / joint.sum(0)
    shown = np.take_along_axis(masked.inputs, masked.positions, 1)
    for target, token, weight in zip(
        *map(np.ravel, (masked.targets, shown, masked.weights)), strict=True
    ):
        if weight:
            nats -= math.log(share[target])
            floor -= math.log(
                share[target] if token == own.tokenizer.mask_id else given[target, token]
            )
            predictions += 1
    result = json.loads((text_run / "result.json").read_text())
    assert result["eval"]["predictions"] == predictions
    expected = {"token frequencies alone": nats, "the shown token alone, without context": floor}
    assert {model["name"]: model["eval"] for model in result["baselines"]} == {
        name: {"perplexity": pytest.approx(math.exp(sum_of / predictions), rel=1e-5)}
        for name, sum_of in expected.items()
    }
    lines = [json.loads(line) for line in (text_run / "metrics.jsonl").read_text().splitlines()]
    assert ["baselines" in line for line in lines if "eval" in line] == [False, True], (
        "beside the last one alone"
    )


def test_frequencies_of_a_long_text_are_those_of_spread_blocks(text_run, monkeypatch):
    stream = loading.load(str(text_run)).task.windows("train").prepared
    monkeypatch.setattr(prepared, "BLOCK", stream.tokens // 7)
    monkeypatch.setattr(
        stream, "read", lambda start, stop: np.arange(start, stop) // prepared.BLOCK
    )
    assert np.flatnonzero(stream.counts(9, most=3 * prepared.BLOCK)).tolist() == [0, 3, 7]
    assert stream.counts(9).sum() == stream.tokens


def evaluated(config, monkeypatch) -> dict[int, tuple]:
    """What evaluation has the model read and predict, by the sequence."""
    found, held = task(config), {}
    monkeypatch.setattr(
        found, "masked_loss", lambda _, masked, weights, key: {"seen": (*masked[:3], weights)}
    )
    evaluate = jax.jit(lambda batch: found.evaluate(None, batch)[0]["seen"])
    with found.evaluation_batches(0, 1) as batches:
        for batch in batches:
            seen = jax.device_get(evaluate(batch))
            for row, index in enumerate(batch["index"].tolist()):
                if batch["weight"][row]:
                    held[index] = [part[row].tolist() for part in seen]
    return held


def test_all_models_are_held_to_the_same_masks(config, monkeypatch, tmp_path):
    """Whatever the model, its seed, its batches, its schedule and how it was masked in training."""
    config.data.train = str(write_lines(tmp_path / "raw.jsonl", LINES))
    expected = evaluated(config, monkeypatch)
    assert len(expected) == task(config).evaluation_examples() > 5
    assert all(sum(weights) >= 1 for *_, weights in expected.values())
    other = tiny.text_config(
        tmp_path, block="transformer", positions="absolute", heads=2, dropout=0.1
    )
    other.data.train, other.seed, other.batch_size = config.data.train, 1, 9
    other.masking.static, other.optimizer.learning_rate = True, 0.1
    assert evaluated(other, monkeypatch) == expected
    for examples, indices in (
        (3, {0, len(expected) // 3, 2 * len(expected) // 3}),
        (1000, expected.keys()),
    ):
        config.eval.examples = examples
        assert task(config).evaluation_examples() == len(indices)
        assert evaluated(config, monkeypatch) == {index: expected[index] for index in indices}
    config.eval.seed = 1
    assert evaluated(config, monkeypatch) != expected


def masks_by_index(config, monkeypatch) -> dict[int, list[list[int]]]:
    """For each sequence, what the model was to read each time that it was seen in three epochs of
    training."""
    found, task_ = {}, task(config)
    monkeypatch.setattr(
        task_,
        "masked_loss",
        lambda _, masked, *__: {"loss": (jnp.float32(0),), "read": masked.inputs},
    )
    read = jax.jit(lambda batch: task_.loss(None, batch)[1]["read"])
    with task_.train_batches(0, 0, 1) as batches:
        for step in range(3 * len(task_.windows("train")) // config.batch_size):
            batch = next(batches)
            rows = read(
                batch | {"key": jax.random.split(jax.random.key(step), len(batch["index"]))}
            )
            for index, inputs in zip(batch["index"].tolist(), np.array(rows).tolist(), strict=True):
                found.setdefault(index, []).append(inputs)
    return found


def test_static_masks_stay_from_epoch_to_epoch(config, monkeypatch, tmp_path):
    config.data.train = str(write_lines(tmp_path / "raw.jsonl", LINES[:20]))
    anew = masks_by_index(config, monkeypatch)
    config.masking.static = True
    static = masks_by_index(config, monkeypatch)
    assert anew.keys() == static.keys() and max(map(len, static.values())) >= 3
    assert all(inputs == each[0] for each in static.values() for inputs in each)
    again = [each for each in anew.values() if len(each) > 1]
    assert sum(each[0] == each[1] for each in again) < 0.2 * len(again)
    config.batch_size = 5
    smaller = masks_by_index(config, monkeypatch)
    assert all(smaller[index][0] == static[index][0] for index in static.keys() & smaller.keys())
    config.batch_size, config.seed = 8, 1
    other = masks_by_index(config, monkeypatch)
    assert sum(other[index][0] == static[index][0] for index in static) < 0.2 * len(static)
