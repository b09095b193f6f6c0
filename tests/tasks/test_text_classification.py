"""Finetuning on sentences and pairs: batches, sums over every example once, GLUE's scores and
files."""

import json
import math
import zlib

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning import pairs, sentences
from gmlp_flax.data.finetuning.glue import GLUE_TASKS
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.tasks import text_classification
from gmlp_flax.tasks.text_classification import TextClassification
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.training import tiny

PAIRS = "index\tsentence1\tsentence2\tlabel\n"
MNLI = "index\tsentence1\tsentence2\tgold_label\n"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    Tokenizer.train([" ".join(tiny.WORDS[i:]) for i in range(40)], 300).save(path)
    return str(path)


def rows(labels, start=0) -> str:
    """A row a label: id, two runs of words of varying length, label."""
    words = " ".join(tiny.WORDS)
    return "".join(
        f"{start + i}\t{words[i % 40 : i % 40 + 9 + i]}\t{words[(7 * i) % 90 :][:12]}\t{label}\n"
        for i, label in enumerate(labels)
    )


def config(vocabulary, train, task="rte", **data):
    options = gmlp_config.default(task="text_classification")
    options.glue.task, options.batch_size = task, 8
    options.model.update(
        layers=2,
        d_model=8,
        d_ffn=16,
        length=16,
        vocab_size=320,
        spatial_init_std=0.5,
        mask_padding=True,
        pool="cls",
    )
    options.data.update(train=str(train), tokenizer=vocabulary, **data)
    return options


def glue_folder(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.tsv").write_text(content)
    return folder


def rte(folder):
    names = GLUE_TASKS["rte"].labels
    dev = PAIRS + rows([names[i % 3 == 0] for i in range(21)], 100)
    return glue_folder(folder, train=PAIRS + rows([names[i % 2] for i in range(30)]), dev=dev)


@pytest.fixture(scope="module")
def task(vocabulary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rte")
    return TextClassification(config(vocabulary, rte(folder)), str(folder))


@pytest.fixture(scope="module")
def params(task):
    return undecided(task)


def undecided(task):
    """Parameters that put about half of the held-out examples in each of the first two classes."""
    params = task.init(jax.random.key(0))
    params["head"]["kernel"] *= 50
    logits = logits_of(task, params)
    leads = np.sort(logits[:, 0] - logits[:, 1])
    middle = len(leads) // 2
    params["head"]["bias"] = (
        params["head"]["bias"].at[1].set((leads[middle - 1] + leads[middle]) / 2)
    )
    return params


def logits_of(task, params, side="heldout"):
    """Of the whole side at once, without the pipeline."""
    examples = task.examples(side)
    rows = [examples[i] for i in range(len(examples))]
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return np.asarray(
        jax.jit(lambda params, batch: task.scores(params, batch, None))(params, batch)
    )


def test_loss(task, params):
    with task.train_batches(0, 0, 1) as batches:
        batch = next(batches) | {"key": jax.random.split(jax.random.key(0), 8)}
    loss, sums = jax.jit(task.loss)(params, batch)
    logits, labels = logits_of(task, params, "train")[batch["index"]], batch["label"]
    expected = np.log(np.exp(logits).sum(-1)) - logits[np.arange(8), labels]
    assert float(loss) == pytest.approx(expected.sum(), rel=1e-5) and float(sums["loss"][1]) == 8
    assert float(sums["accuracy"][0]) == (logits.argmax(-1) == labels).sum()


@pytest.mark.parametrize("batch_size", [8, 64])
def test_every_example_counts_once(task, params, batch_size):
    task.config.eval.batch_size = batch_size
    metrics, outputs = Evaluator(task, Partition.make())(params)
    logits, labels = logits_of(task, params), task.examples("heldout").columns["label"]
    assert (
        metrics["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == labels))
        and metrics["examples"] == 21
    )
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(21), labels]
    assert metrics["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert set(metrics) == {"accuracy", "loss", "examples"}
    np.testing.assert_array_equal(outputs["label"], logits.argmax(-1))
    assert 0 < outputs["label"].sum() < 21  # both labels are predicted


def test_mnli_has_two_accuracies_and_two_files(vocabulary, tmp_path):
    labels = GLUE_TASKS["mnli"].labels
    matched, mismatched = (MNLI + rows([labels[i % 3] for i in range(size)]) for size in (10, 7))
    glue_folder(tmp_path, train=MNLI + rows(labels), dev_matched=matched, dev_mismatched=mismatched)
    task = TextClassification(config(vocabulary, tmp_path, "mnli"), str(tmp_path))
    params = undecided(task)
    metrics, outputs = Evaluator(task, Partition.make())(params)
    hits = outputs["label"] == [*(i % 3 for i in range(10)), *(i % 3 for i in range(7))]
    assert metrics["accuracy"] == pytest.approx(hits[:10].mean())
    assert metrics["accuracy_mm"] == pytest.approx(hits[10:].mean()) and metrics["examples"] == 17
    assert {*task.eval_metrics, "examples"} == set(metrics)
    assert task.baselines({}) == [
        ("the most frequent label", {"accuracy": 4 / 10, "accuracy_mm": 3 / 7})
    ]
    assert task.format_metrics(metrics).startswith(
        f"accuracy {10 * hits[:10].sum()}.0%  accuracy_mm "
    )
    files = task.prediction_files(outputs)
    assert list(files) == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    assert [content.count(b"\n") for content in files.values()] == [11, 8]
    assert files["MNLI-mm.tsv"].split(b"\n")[1] == f"0\t{labels[outputs['label'][10]]}".encode()
    lines = ["\t".join(line.split("\t")[1:3]) for line in matched.splitlines()[1:]]
    answers = [
        answer.predictions[0] for answer in task.predict_stream(params, lines, top=2, truncate=True)
    ]
    assert [ranked[0][0] for ranked in answers] == [
        labels[label] for label in outputs["label"][:10]
    ]
    assert all(len(ranked) == 2 and 1 >= ranked[0][1] >= ranked[1][1] > 0 for ranked in answers)
    assert "1 text(s), the task reads 2" in raised(RunError, task.predict, params, ["one"])


@pytest.mark.parametrize("name", ["cola", "mrpc"])
def test_scores_beside_accuracy(vocabulary, tmp_path, name):
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    content = {
        "cola": "".join(f"s\t{i % 2}\t*\t{tiny.WORDS[i]} {tiny.WORDS[-i]}\n" for i in range(20)),
        "mrpc": header
        + "".join(f"{i % 2}\t1\t2\t{tiny.WORDS[i]}\t{tiny.WORDS[-i]}\n" for i in range(20)),
    }[name]
    options = config(vocabulary, glue_folder(tmp_path, train=content, dev=content), name)
    task = TextClassification(options, str(tmp_path))
    metrics, outputs = Evaluator(task, Partition.make())(undecided(task))
    labels, predicted = np.arange(20) % 2, outputs["label"]
    assert 0 < predicted.sum() < 20 and {*task.eval_metrics, "examples"} == set(metrics)
    counts = 20, 10, predicted.sum(), (labels & predicted).sum()
    score = {"cola": "matthews", "mrpc": "f1"}[name]
    assert metrics[score] == pytest.approx(getattr(text_classification, score)(*counts))
    written = task.prediction_files(outputs)[GLUE_TASKS[name].submission[0]]
    assert written.startswith(b"index\tprediction\n0\t%d\n1\t%d\n" % tuple(predicted[:2]))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_matthews_and_f1(examples):
    """Against their definitions over the four counts."""
    pairs = np.array(examples)
    truth, said = pairs.T
    tp, fp, fn, tn = (
        (truth & said).sum(),
        (~truth & said).sum(),
        (truth & ~said).sum(),
        (~truth & ~said).sum(),
    )
    counts = len(pairs), int(truth.sum()), int(said.sum()), int(tp)
    spread = math.sqrt(float(tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    expected = (float(tp) * tn - float(fp) * fn) / spread if spread else 0
    assert text_classification.matthews(*counts) == pytest.approx(expected)
    assert text_classification.f1(*counts) == pytest.approx(
        2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0
    )


def test_a_test_set(vocabulary, tmp_path):
    """Without labels there are predictions and no metrics."""
    folder = glue_folder(rte(tmp_path), test="index\tsentence1\tsentence2\n0\tthe\ta\n1\tof\tto\n")
    task = TextClassification(config(vocabulary, folder, heldout_split="test"), str(tmp_path))
    metrics, outputs = Evaluator(task, Partition.make())(task.init(jax.random.key(0)))
    assert metrics == {"examples": 2, "unlabelled": 2}
    assert task.prediction_files(outputs)["RTE.tsv"].count(b"entailment\n") == 2


def test_assets(task):
    files = task.assets()
    assert files["tokenizer.model"] == task.tokenizer.model
    assert json.loads(files["labels.json"]) == {
        "task": "rte",
        "labels": ["entailment", "not_entailment"],
    }
    assert set(task.heads) < set(files) and set(task.shared_assets) < set(files)


def test_what_is_cut_skipped_or_dropped_is_told(vocabulary, tmp_path, capsys):
    good = rows(["neutral"] * 3)
    train = tmp_path / "train.tsv"
    train.write_text(MNLI + good + "7\tbroken\n" + rows(["-"], 50))
    task = TextClassification(
        config(vocabulary, train, "snli", heldout=str(train), max_bad_records=1), str(tmp_path)
    )
    assert len(task.examples("train")) == 3
    told = capsys.readouterr().err
    assert f"train examples: 1 bad record(s) skipped, the first: {train}, line 5: 2 columns" in told
    assert "train examples: 1 without a gold label are left out, 3 remain" in told
    lengths = [
        [len(task.tokenizer.encode(text)) for text in line.split("\t")[1:3]]
        for line in good.splitlines()
    ]
    cut = sum(sum(pair) + 3 > 16 for pair in lengths)
    assert (
        cut
        and f"train examples: {cut} of 3 are longer than config.model.length=16 and are cut" in told
    )


def test_own_labelled_text(vocabulary, tmp_path):
    """Labels come from the training data and, once a run has them, from its folder, whatever the
    data then say."""

    def write(labels):
        rows = [
            {"q": tiny.WORDS[i], "a": tiny.WORDS[-i - 1], "verdict": labels[i % 2]}
            for i in range(20)
        ]
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(["yes", "maybe"])
    options = config(vocabulary, tmp_path / "data.jsonl", "own", heldout_share=0.3)
    options.own.update(text="q", second="a", label="verdict")
    made = TextClassification(options, str(tmp_path))
    assert (
        made.glue.labels == ("maybe", "yes")
        and len(made.examples("train")) + len(made.examples("heldout")) == 20
    )
    assert made.shapes()["head"]["kernel"].shape == (8, 2)
    heldout = made.sentences("heldout")
    written = (
        made.prediction_files({"label": heldout.labels})["predictions.tsv"].decode().splitlines()
    )
    assert [line.split("\t")[1] for line in written[1:]] == [
        ("maybe", "yes")[i] for i in heldout.labels
    ]

    (tmp_path / "labels.json").write_bytes(made.assets()["labels.json"])
    write(["yes", "no"])
    again = TextClassification(options, str(tmp_path))
    assert again.glue.labels == ("maybe", "yes")
    with pytest.raises(
        DataError, match=r"^config.data.train: .*the label 'no'; expected 'maybe', 'yes'"
    ):
        again.examples("train")
    assert TextClassification.without_data(options).shapes()["head"]["kernel"].shape == (8, 2)


def own(vocabulary, folder, labels, heldout="", **data):
    """A task on a table of one's own, with a text a label."""
    (folder / "own.csv").write_text(
        "text,label\n" + "".join(f"{i} {tiny.WORDS[i]},{x}\n" for i, x in enumerate(labels))
    )
    if heldout:
        (folder / "heldout.csv").write_text("text,label\n" + heldout)
        data["heldout"] = str(folder / "heldout.csv")
    return TextClassification(config(vocabulary, folder / "own.csv", "own", **data), str(folder))


def test_the_start_says_what_own_data_were_read_as(vocabulary, tmp_path, capsys):
    task = own(
        vocabulary,
        tmp_path,
        ["1.0", "0.0", "1.0", "0.0", "1.0", ""],
        f"new,0\n0 {tiny.WORDS[0]},1\n",
    )
    assert task.notes() == [
        "note: 1 of 2 held-out examples have texts that are trained on, too",
        "read: text 'text', label 'label'; smallest class to train on '0' with 2, largest '1' with 3; 1 rows without a "
        "label left out",
    ]
    assert (
        "train examples: 5 labels are read in another form: '1.0' as '1'" in capsys.readouterr().err
    )
    assert task.class_names == ("0", "1")


def test_own_data_are_read_once(vocabulary, tmp_path, monkeypatch):
    """Their classes come from the rows that training reads."""
    read, open_sentences = [], sentences.open_sentences
    monkeypatch.setattr(
        sentences,
        "open_sentences",
        lambda *args, **options: read.append(args) or open_sentences(*args, **options),
    )
    task = own(vocabulary, tmp_path, "abab", f"new,a\n0 {tiny.WORDS[0]},b\n")
    assert (
        task.class_names == ("a", "b")
        and len(task.examples("train")) == 4
        and len(task.examples("heldout")) == 2
    )
    assert len(read) == 2


def test_texts_that_several_rows_have(vocabulary, tmp_path):
    """As pandas counts them: the same text with two labels, and a cell that stands for none."""
    rows = [
        ("same", "a"),
        ("same", "b"),
        ("NULL", "a"),
        ("NULL", "a"),
        ("NULL", "b"),
        ("other", "b"),
    ]
    (tmp_path / "own.csv").write_text(
        "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    )
    (tmp_path / "heldout.csv").write_text("text,label\nnew,a\n")
    data = {"heldout": str(tmp_path / "heldout.csv")}
    task = TextClassification(
        config(vocabulary, tmp_path / "own.csv", "own", **data), str(tmp_path)
    )
    repeated = "3 of 6 examples to train on repeat the texts of others, such as 'NULL' (3 rows), 2 of them with another"
    assert f"note: {repeated} label" in task.notes()


def test_a_rate_for_large_models_on_a_small_one_is_told(vocabulary, tmp_path):
    task = own(vocabulary, tmp_path, "abababab")
    with task.config.unlocked():
        task.config.optimizer.learning_rate = 2e-5
    assert "the rate 2e-05" in task.notes()[0] and "scale=small" in task.notes()[0]
    task.config.model.d_model = 768
    assert not any("scale=small" in line for line in task.notes())


def test_own_labels_that_are_only_held_out(vocabulary, tmp_path):
    task = own(vocabulary, tmp_path, "aabb", "new,c\n")
    with pytest.raises(DataError, match="config.data.heldout: .*the label 'c'; expected 'a', 'b'"):
        task.notes()
    texts = [f"text {i}" for i in range(40)]
    rows = [
        f"{text},{'ab'[zlib.crc32(text.encode()) < 2**31 and i > 20]}\n"
        for i, text in enumerate(texts)
    ]
    assert sum(row.endswith("b\n") for row in rows) > 2
    (tmp_path / "own.csv").write_text("text,label\nx,c\ny,c\nz,c\nw,c\n" + "".join(rows))
    task = TextClassification(
        config(vocabulary, tmp_path / "own.csv", "own", heldout_share=0.5), str(tmp_path)
    )
    assert "the label 'b'; expected 'a', 'c', which the examples to train on have" in raised(
        DataError, task.notes
    )


def test_pairs_that_are_encoded_alone(vocabulary, tmp_path):
    options = config(vocabulary, rte(tmp_path))
    options.model.update(pairs="apart", length=12)
    task = TextClassification(options, str(tmp_path))
    assert task.example_shapes()["tokens"] == (
        task.examples("train")[0]["tokens"].shape,
        jax.numpy.int32,
    )
    assert (
        task.example_shapes()["tokens"][0] == (2, 12)
        and not task.examples("train")[0]["segments"].any()
    )
    metrics, _ = Evaluator(task, Partition.make())(task.init(jax.random.key(0)))
    assert metrics["examples"] == 21 and metrics["loss"] == pytest.approx(math.log(2), rel=0.3)


@pytest.mark.parametrize(
    "options",
    [{"hide_padding": True}, {"block": "transformer", "heads": 2, "positions": "relative"}],
    ids=["gmlp", "bert"],
)
def test_batches_of_short_texts_are_cut_and_score_the_same(vocabulary, tmp_path, options):
    """To one of a few lengths; several hosts, which see a part of a batch each, read whole
    sequences."""
    options = {
        "d_ffn": 16,
        "d_model": 8,
        "layers": 2,
        "length": 200,
        "vocab_size": 320,
        "mask_padding": True,
    } | options
    given = config(vocabulary, rte(tmp_path))
    given.model = gmlp_config.default(
        task="text_classification", block=options.pop("block", "gmlp")
    ).model
    given.model.update(options)
    task = TextClassification(given, str(tmp_path))
    params, loss = task.init(jax.random.key(0)), jax.jit(task.loss)
    params = jax.tree.map(
        lambda x: x + jax.random.normal(jax.random.key(1), x.shape, x.dtype) / 2, params
    )
    with task.train_batches(3, 0, 1) as cut, task.train_batches(3, 0, 2) as half:
        batch, part = next(cut), next(half)
    whole = {
        name: np.stack([task.examples("train")[i][name] for i in batch["index"]]) for name in batch
    }
    used = int((whole["tokens"] != task.pad_id).any(0).nonzero()[0][-1]) + 1
    length = batch["tokens"].shape[1]
    assert used <= length < 200 and length in pairs.LENGTHS and part["tokens"].shape == (4, 200)
    for name in ("tokens", "segments"):
        np.testing.assert_array_equal(batch[name], whole[name][:, :length])
    sums = [
        loss(params, of | {"key": jax.random.split(jax.random.key(0), 8)})[1]
        for of in (batch, whole)
    ]
    assert float(sums[0]["loss"][0]) == pytest.approx(float(sums[1]["loss"][0]), rel=1e-5)
    metrics, _ = Evaluator(task, Partition.make())(params)
    assert metrics["examples"] == 21
    logits, labels = logits_of(task, params), task.examples("heldout").columns["label"]
    assert metrics["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == labels))


def test_padding_that_cannot_be_hidden(vocabulary, tmp_path):
    given = config(vocabulary, rte(tmp_path))
    given.model.update(hide_padding=True, spatial="dense")
    with pytest.raises(
        ValueError, match="model.hide_padding is True, and this model reads all n tokens"
    ):
        TextClassification(given, str(tmp_path)).spec()
    given.model.mask_padding = False
    assert "hide_padding is True, and model.mask_padding is not" in raised(
        ConfigError, TextClassification.check, given
    )
    given.model.hide_padding, task = False, TextClassification(given, str(tmp_path))
    with task.train_batches(0, 0, 1) as batches:
        assert next(batches)["tokens"].shape == (8, 16)
