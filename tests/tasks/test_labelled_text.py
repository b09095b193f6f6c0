"""Labelled sentences and pairs: how they are read, laid out, truncated and batched, the notes on
them, and answers to single lines."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.data import pipeline
from gmlp_flax.data.finetuning import pairs
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.readers import labelled_text as reader
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.inference.prediction import Settings
from gmlp_flax.tasks.labelled_text import hides_padding
from gmlp_flax.tasks.text_classification import TextClassification, TextClassificationData
from gmlp_flax.tasks.text_regression import TextRegressionData
from tests.failures import failure, raised
from tests.tasks import by_hand, labelled_files
from tests.training import tiny

KIND = "text_classification"


def rte_config(vocabulary, folder, **model):
    """A config of 30 training pairs and 21 held-out pairs."""
    config = labelled_files.config(KIND, vocabulary, labelled_files.rte(folder), "rte")
    config.model.update(model)
    return config


def batch_of_role(data, role: str) -> dict[str, np.ndarray]:
    """All encoded examples of a role, as one batch."""
    examples = by_hand.all_examples(data.examples(role))
    return by_hand.stacked(examples)


@pytest.fixture
def broken(vocabulary, tmp_path):
    """A config of a file in SNLI's form with three good rows, one malformed row and one without a
    label."""
    path = tmp_path / "train.tsv"
    good = labelled_files.rows(["neutral"] * 3)
    without_label = labelled_files.rows(["-"], first=50)
    path.write_text(f"{labelled_files.MNLI}{good}7\tbroken\n{without_label}")
    config = labelled_files.config(KIND, vocabulary, path, "snli")
    config.data.update(heldout=str(path), max_bad_records=1)
    return config


def test_truncated_texts_are_reported(broken, capsys):
    data = TextClassificationData(broken)
    source = data.examples(TRAIN)
    assert len(source) == 3
    cut = 0
    for row in data.dataset(TRAIN).examples.rows:
        first, second = data.tokenizer.encode_batch(list(row.texts))
        length = len(first) + len(second) + 3
        if length > 16:
            cut += 1
    assert cut > 0
    assert source.cut == cut
    stderr = capsys.readouterr().err
    assert f"train examples: {cut} of 3 are longer than config.model.length=16" in stderr


def test_skipped_and_unlabelled_rows_are_reported(broken):
    data = TextClassificationData(broken)
    [_, *notes] = data.lines(TRAIN)
    assert any("1 row" in note and "without a label" in note for note in notes)
    place = f"{broken.data.train}, line 5: "
    assert f"1 bad record skipped, the first: {place}" in "\n".join(notes)


def test_malformed_row_is_refused(broken):
    broken.data.max_bad_records = 0
    message = failure(TextClassificationData(broken).dataset, TRAIN)
    assert message.startswith(f"config.data.train: {broken.data.train}, line 5: ")


def test_lines_and_summary_of_pairs(vocabulary, tmp_path):
    data = TextClassificationData(rte_config(vocabulary, tmp_path))
    [line, *_] = data.lines(HELDOUT)
    for fact in ("heldout: ", "'validation'", "21 rows", "entailment (14)", "sentence1, sentence2"):
        assert fact in line
    summary = data.summary(TRAIN)
    assert summary.classes == {"entailment": 15, "not_entailment": 15}
    assert summary.examples == 30
    assert summary.units == "rows"
    first, second = labelled_files.pair(0)
    assert summary.shown[0] == f"{first.strip()} | {second.strip()}  -> entailment"


@pytest.mark.parametrize("layout", ["joined", "apart"])
def test_tokens_are_counted_over_the_pair(vocabulary, tmp_path, layout):
    config = rte_config(vocabulary, tmp_path, pairs=layout)
    data = TextClassificationData(config)
    tokens = data.tokens(HELDOUT)
    lengths = []
    for row in data.dataset(HELDOUT).examples.rows:
        sizes = []
        for text in row.texts:
            sizes.append(len(data.tokenizer.encode(text)))
        if layout == "joined":
            lengths.append(sum(sizes))
        else:
            lengths.extend(sizes)
    room = 16 - 3 if layout == "joined" else 16 - 2
    lengths = np.array(lengths)
    is_cut = lengths > room
    assert tokens.examples == len(lengths)
    assert tokens.shortest == lengths.min()
    assert tokens.longest == lengths.max()
    cut_share = is_cut.mean()
    assert tokens.cut == pytest.approx(cut_share)


def test_texts_in_both_splits_get_a_note(vocabulary, tmp_path):
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "abab", "new,b\n")
    data = TextClassificationData(config)
    assert data.notes() == []
    notes = data.lines(HELDOUT)[2:]
    assert notes == ["note: classes without a held-out example: 1 ('a')"]
    known = f"0 {tiny.WORDS[0]},a\nnew,b\n"
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "abab", known)
    [note] = TextClassificationData(config).notes()
    assert "50%" in note


def test_data_are_read_once_for_each_role(vocabulary, tmp_path, monkeypatch):
    """The classes come from the rows that training reads."""
    calls = []
    read = reader.read

    def counted(path, *args):
        calls.append(path)
        return read(path, *args)

    monkeypatch.setattr(reader, "read", counted)
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "abab", "new,a\nold,b\n")
    data = TextClassificationData(config)
    assert data.classes == ("a", "b")
    assert len(data.examples(TRAIN)) == 4
    assert len(data.examples(HELDOUT)) == 2
    data.assets()
    data.notes()
    assert calls == [config.data.train, config.data.heldout]


def test_training_data_without_labels_are_refused(vocabulary, tmp_path):
    (tmp_path / "train.tsv").write_text("index\tsentence1\tsentence2\n0\tthe\ta\n1\tof\tto\n")
    config = labelled_files.config(KIND, vocabulary, tmp_path / "train.tsv", "rte")
    message = failure(TextClassificationData(config).dataset, TRAIN)
    assert message.startswith("config.data.train: ")
    assert "label" in message


@pytest.fixture
def with_splits(vocabulary, tmp_path):
    """A config of a published table whose column says which split a row belongs to."""
    header = labelled_files.PAIRS.replace("label\n", "label\tsplit\n")
    splits = ["train", "dev", "train", "test"] * 10
    labels = ["entailment", "not_entailment"] * 20
    rows = labelled_files.rows(labels).splitlines()
    lines = []
    for row, split in zip(rows, splits, strict=True):
        lines.append(f"{row}\t{split}\n")
    path = tmp_path / "all.tsv"
    path.write_text(header + "".join(lines))
    return labelled_files.config(KIND, vocabulary, path, "rte")


def test_split_of_a_published_file(with_splits):
    data = TextClassificationData(with_splits)
    assert by_hand.split_sizes(data) == (20, 10)


def test_all_splits_of_a_published_file(with_splits):
    with_splits.data.update(split="all", heldout_share=0.25)
    data = TextClassificationData(with_splits)
    train, heldout = by_hand.split_sizes(data)
    assert train + heldout == 40
    assert train > 20


def shapes_of(example: dict[str, np.ndarray]) -> dict[str, tuple]:
    """The shape and the dtype of each array."""
    shapes = {}
    for name, array in example.items():
        shapes[name] = (array.shape, array.dtype)
    return shapes


def test_separately_encoded_pairs(vocabulary, tmp_path):
    config = rte_config(vocabulary, tmp_path, pairs="apart", length=12)
    task, data = tiny.open_task(config, tmp_path / "run")
    example = data.examples(TRAIN)[0]
    shapes = shapes_of(example)
    assert shapes == task.example_shapes()
    assert shapes["tokens"] == ((2, 12), jnp.int32)
    assert not example["segments"].any()


def test_evaluation_of_separately_encoded_pairs(vocabulary, tmp_path):
    config = rte_config(vocabulary, tmp_path, pairs="apart", length=12)
    task, data = tiny.open_task(config, tmp_path / "run")
    params = task.init(jax.random.key(0))
    metrics, _ = by_hand.evaluate(task, data, params)
    assert metrics["examples"] == 21
    assert metrics["loss"] == pytest.approx(np.log(2), rel=0.3)


def test_examples_have_the_shapes_of_the_task(vocabulary, tmp_path):
    config = rte_config(vocabulary, tmp_path)
    task, data = tiny.open_task(config, tmp_path / "run")
    example = data.examples(HELDOUT)[3]
    assert shapes_of(example) == task.example_shapes()
    tokenizer = data.tokenizer
    dataset_rows = data.dataset(HELDOUT).examples.rows
    row = dataset_rows[3]
    ids = []
    for text in row.texts:
        encoded = tokenizer.encode(text)
        ids.append(np.array(encoded, np.int32))
    tokens, segments = pairs.assemble(ids, 16, tokenizer)
    assert_array_equal(example["tokens"], tokens)
    assert_array_equal(example["segments"], segments)


TRANSFORMER = {"block": "transformer", "heads": 2, "positions": "relative"}


def long_config(vocabulary, folder, block: str = "gmlp", **model):
    """A config of a model of 200 tokens, more than any text has."""
    config = rte_config(vocabulary, folder)
    defaults = gmlp_config.default(task=KIND, block=block)
    config.model = defaults.model
    config.model.update(layers=2, d_model=8, d_ffn=16)
    config.model.update(length=200, vocab_size=320, mask_padding=True)
    config.model.update(model)
    return config


@pytest.mark.parametrize("options", [{"hide_padding": True}, TRANSFORMER], ids=["gmlp", "bert"])
def test_shortened_batches_give_the_same_scores(vocabulary, tmp_path, options):
    """One process shortens a batch to one of a few lengths. Of several processes, each sees a part of
    the batch and reads whole sequences."""
    config = long_config(vocabulary, tmp_path, **options)
    task, data = tiny.open_task(config, tmp_path / "run")
    assert hides_padding(config)
    with data.train_batches(3, 0, 1) as batches:
        batch = next(batches)
    with data.train_batches(3, 0, 2) as half_batches:
        half = next(half_batches)
    rows = batch["index"]
    whole_batch = batch_of_role(data, TRAIN)
    whole = jax.tree.map(lambda array: array[rows], whole_batch)
    length = batch["tokens"].shape[1]
    is_token = whole["tokens"] != task.tokenizer.pad_id
    used = is_token.any(axis=0).sum()
    assert used <= length < 200
    assert length in pairs.LENGTHS
    assert half["tokens"].shape == (4, 200)
    for name in ("tokens", "segments"):
        cut_back = whole[name][:, :length]
        assert_array_equal(batch[name], cut_back)

    params = tiny.random_params(task.shapes(), 0.5)
    loss = jax.jit(task.loss)
    keys = by_hand.keys(8)
    keyed_batch = {**batch, "key": keys}
    cut_loss, _ = loss(params, keyed_batch)
    keyed_whole = {**whole, "key": keys}
    whole_loss, _ = loss(params, keyed_whole)
    expected = pytest.approx(float(whole_loss), rel=1e-5)
    assert float(cut_loss) == expected


def test_batches_are_not_shortened_if_the_model_reads_padding(vocabulary, tmp_path):
    config = rte_config(vocabulary, tmp_path)
    data = TextClassificationData(config)
    assert not hides_padding(config)
    assert data.finish(1) is pipeline.unchanged
    with data.train_batches(0, 0, 1) as batches:
        batch = next(batches)
        assert batch["tokens"].shape == (8, 16)
    hiding = TextClassificationData(long_config(vocabulary, tmp_path, hide_padding=True))
    assert hiding.finish(1) is not pipeline.unchanged
    assert hiding.finish(2) is pipeline.unchanged


def test_blocks_that_cannot_hide_padding(vocabulary, tmp_path):
    config = rte_config(vocabulary, tmp_path, hide_padding=True, spatial="dense")
    assert "model.hide_padding is True" in raised(ValueError, TextClassification(config).spec)
    config.model.mask_padding = False
    message = raised(ConfigError, TextClassification.check, config)
    assert "hide_padding is True, and model.mask_padding is not" in message


@pytest.mark.parametrize(
    ("task", "model", "key"),
    [
        ("sst2", {"pairs": "apart"}, "config.model.pairs"),
        ("rte", {"pairs": "apart", "pooler": True}, "model.pooler"),
        ("rte", {"causal": True, "pool": "cls"}, "config.model.pool"),
    ],
)
def test_contradicting_keys_are_refused(task, model, key):
    config = gmlp_config.default(task=KIND)
    config.glue.task = task
    config.model.update(model)
    assert key in raised(ConfigError, TextClassification.check, config)


def test_own_data_with_one_text_column_are_not_pairs():
    config = gmlp_config.default(task=KIND)
    config.glue.task = "own"
    config.model.pairs = "apart"
    assert "the task own" in raised(ConfigError, TextClassification.check, config)
    config.own.second = "answer"
    TextClassification.check(config)


@pytest.mark.parametrize("options", [{"hide_padding": True}, TRANSFORMER], ids=["gmlp", "bert"])
def test_evaluation_of_short_texts_equals_one_of_full_sequences(vocabulary, tmp_path, options):
    config = long_config(vocabulary, tmp_path, **options)
    task, data = tiny.open_task(config, tmp_path / "run")
    params = tiny.random_params(task.shapes(), 0.5)
    metrics, _ = by_hand.evaluate(task, data, params)
    heldout = batch_of_role(data, HELDOUT)
    logits = task.scores(params, heldout, None)
    hits = by_hand.are_hits(logits, heldout["label"])
    assert metrics["examples"] == 21
    assert metrics["accuracy"] == pytest.approx(hits.mean())


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["joined", "apart"])
def test_answers_to_lines_agree_with_evaluation(vocabulary, tmp_path, layout):
    config = rte_config(vocabulary, tmp_path, pairs=layout)
    task, data = tiny.open_task(config, tmp_path / "run")
    params = tiny.random_params(task.shapes(), 0.5)
    rows = data.dataset(HELDOUT).examples.rows
    lines = []
    for row in rows:
        lines.append("\t".join(row.texts))
    settings = Settings(top=2, batch_size=4, truncate=True)
    answered = task.predictor.answers(params, lines, settings)
    answers = list(answered)
    batch = batch_of_role(data, HELDOUT)
    logits = task.scores(params, batch, None)
    shares_of_rows = by_hand.softmax(logits)
    for answer, shares in zip(answers, shares_of_rows, strict=True):
        [candidates] = answer.predictions
        best = np.argsort(-shares)
        expected = [task.class_names[index] for index in best]
        assert by_hand.names_of(candidates) == expected
        best_shares = shares[best]
        assert by_hand.shares_of(candidates) == pytest.approx(best_shares, rel=1e-4)
    notes = [answer.note for answer in answers]
    assert any(notes)  # some are truncated


@pytest.fixture
def rte_task(vocabulary, tmp_path):
    task, _ = tiny.open_task(rte_config(vocabulary, tmp_path), tmp_path / "run")
    return task


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("one", "1 text(s), the task reads 2"),
        ("one\ttwo\tthree", "3 text(s), the task reads 2"),
        (f"one\t{labelled_files.TEXT}", "--truncate"),
    ],
)
def test_lines_of_another_form_are_refused(rte_task, line, expected):
    message = raised(RunError, rte_task.predictor.prepare, line)
    assert expected in message


def test_long_line_may_be_truncated(rte_task):
    prepared = rte_task.predictor.prepare(f"one\t{labelled_files.TEXT}", truncate=True)
    assert prepared.note
    assert prepared.examples[0]["tokens"].shape == (16,)


def test_line_is_unpadded_if_padding_is_hidden(vocabulary, tmp_path):
    config = long_config(vocabulary, tmp_path, hide_padding=True)
    task, _ = tiny.open_task(config, tmp_path / "run")
    prepared = task.predictor.prepare("the\tof")
    [example] = prepared.examples
    tokenizer = Tokenizer.load(vocabulary)
    first, second = tokenizer.encode_batch(["the", "of"])
    special_tokens = 3
    text_tokens = len(first) + len(second)
    length = text_tokens + special_tokens
    assert example["tokens"].shape == (length,)


def test_examples_from_python(tmp_path):
    config = gmlp_config.default(task=KIND)
    config.glue.task = "own"
    row = TextClassificationData.row
    record = row(config, ["a text"], "x", "")
    assert record == {"text": "a text", "label": "x"}
    message = failure(row, config, ["a", "b"], "x", "")
    assert "own.second" in message
    assert "(text, label)" in failure(row, config, ["a"], None, "")
    assert "int" in failure(row, config, [3], "x", "")
    config.own.update(text="q", second="a", label="verdict")
    record = row(config, ["a", "b"], 1, "")
    assert record == {"q": "a", "a": "b", "verdict": 1}
    numbers = gmlp_config.default(task="text_regression")
    record = TextRegressionData.row(numbers, ["a", "b"], 2.5, "")
    assert record == {"sentence1": "a", "sentence2": "b", "label": 2.5}


def test_error_for_missing_data_names_the_path(vocabulary, tmp_path):
    config = labelled_files.config(KIND, vocabulary, "", "rte")
    message = failure(TextClassificationData(config).dataset, TRAIN)
    assert "--config.data.train=PATH" in message
    assert data_config.key_of(config, HELDOUT) == "train"


def test_predictions_with_special_characters_are_quoted(vocabulary, tmp_path):
    """Labels of the user's data with tabs and line feeds in them."""
    records = []
    names = ["a\tb", "c\nd"] * 5
    for number, label in enumerate(names):
        records.append({"text": f"text {number}", "label": label})
    path = labelled_files.json_rows(tmp_path / "own.jsonl", records)
    config = labelled_files.config(KIND, vocabulary, path, "own")
    config.data.update(heldout=str(path))
    task, data = tiny.open_task(config, tmp_path / "run")
    labels = data.dataset(HELDOUT).labels
    outputs = {"label": labels}
    [content] = task.prediction_files(outputs, data).values()
    assert content.startswith(b'index\tprediction\n0\t"a\tb"\n1\t"c\nd"\n2\t')
