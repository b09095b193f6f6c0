"""Classification of sentences and pairs: sums over every example once, GLUE's scores and files, and
the classes of the user's data."""

import itertools
import json
import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gmlp_flax.data import holdout
from gmlp_flax.data.finetuning.text_tasks import GLUE_TASKS
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.tasks import text_classification
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.text_classification import TextClassification, TextClassificationData
from gmlp_flax.training.evaluation import Evaluator
from gmlp_flax.training.partition import Partition
from tests.failures import failure
from tests.tasks import by_hand, labelled_files
from tests.tasks.labelled_files import MNLI
from tests.training import tiny

KIND = "text_classification"


def class_config(vocabulary, train, task: str, **data):
    """A config of a classifier that pools [CLS]."""
    config = labelled_files.config(KIND, vocabulary, train, task, **data)
    config.model.pool = "cls"
    return config


@pytest.fixture(scope="module")
def rte(vocabulary, tmp_path_factory):
    """A task on 30 pairs, its data with 21 pairs held out, and parameters."""
    folder = tmp_path_factory.mktemp("rte")
    config = class_config(vocabulary, labelled_files.rte(folder), "rte")
    task, data = tiny.open_task(config, folder / "run")
    return task, data, undecided(task, data)


def undecided(task, data):
    """Parameters that put about half of the held-out examples in each of the first two classes."""
    params = task.init(jax.random.key(0))
    head = params["head"]
    head["kernel"] *= 50
    logits = logits_of(task, data, params)
    leads = logits[:, 0] - logits[:, 1]
    median = np.median(leads)
    bias = head["bias"]
    head["bias"] = bias.at[1].set(median)
    return params


def logits_of(task, data, params, role: str = HELDOUT) -> np.ndarray:
    """The logits of all examples of a role at once, without the pipeline."""
    examples = by_hand.all_examples(data.examples(role))
    batch = by_hand.stacked(examples)

    @jax.jit
    def scores(params, batch):
        return task.scores(params, batch, None)

    return np.asarray(scores(params, batch))


def test_loss(rte):
    task, data, params = rte
    batch = by_hand.first_batch(data)
    batch["key"] = by_hand.keys(8)
    loss, sums = jax.jit(task.loss)(params, batch)
    all_logits = logits_of(task, data, params, TRAIN)
    logits = all_logits[batch["index"]]
    losses = by_hand.cross_entropies(logits, batch["label"])
    hits = by_hand.are_hits(logits, batch["label"])
    expected_loss = pytest.approx(losses.sum(), rel=1e-5)
    assert float(loss) == expected_loss
    assert by_hand.weight(sums, "loss") == 8
    assert by_hand.total(sums, "accuracy") == hits.sum()


@pytest.mark.parametrize("batch_size", [8, 64])
def test_each_example_counts_once(rte, batch_size):
    task, data, params = rte
    data.config.eval.batch_size = batch_size
    metrics, outputs = by_hand.evaluate(task, data, params)
    logits = logits_of(task, data, params)
    labels = data.dataset(HELDOUT).labels
    losses = by_hand.cross_entropies(logits, labels)
    hits = by_hand.are_hits(logits, labels)
    assert metrics == {
        "accuracy": pytest.approx(hits.mean()),
        "loss": pytest.approx(losses.mean(), rel=1e-5),
        "examples": 21,
    }
    predicted = logits.argmax(-1)
    assert_array_equal(outputs["label"], predicted)
    assert 0 < outputs["label"].sum() < 21  # both labels are predicted


def mnli_table(size: int) -> str:
    """A table whose rows have the three labels in turn."""
    labels = itertools.cycle(GLUE_TASKS["mnli"].labels)
    first_labels = itertools.islice(labels, size)
    return MNLI + labelled_files.rows(first_labels)


@pytest.fixture
def mnli(vocabulary, tmp_path):
    """A task with 3 training examples, and 10 matched and 7 mismatched held-out ones."""
    labelled_files.write(
        tmp_path,
        train=mnli_table(3),
        dev_matched=mnli_table(10),
        dev_mismatched=mnli_table(7),
    )
    config = class_config(vocabulary, tmp_path, "mnli")
    return tiny.open_task(config, tmp_path / "run")


MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def test_mnli_has_two_accuracies(mnli):
    task, data = mnli
    evaluator = Evaluator(task, data, Partition.make())
    params = undecided(task, data)
    metrics, outputs = evaluator(params)
    numbers = [*range(10), *range(7)]
    rows = np.array(numbers)
    labels = rows % 3
    hits = outputs["label"] == labels
    matched = hits[:10]
    mismatched = hits[10:]
    matched_accuracy = matched.mean()
    assert metrics["accuracy"] == pytest.approx(matched_accuracy)
    mismatched_accuracy = mismatched.mean()
    assert metrics["accuracy_mm"] == pytest.approx(mismatched_accuracy)
    assert metrics["examples"] == 17
    assert {*task.eval_metrics, "examples"} == set(metrics)
    shown = task.format_metrics(metrics)
    hit_count = matched.sum()
    assert shown.startswith(f"accuracy {10 * hit_count}.0%  accuracy_mm ")
    [baseline] = evaluator.baselines()
    expected = {"accuracy": 4 / 10, "accuracy_mm": 3 / 7}
    assert baseline == ("the most frequent label", expected)


def test_mnli_has_two_files(mnli):
    task, data = mnli
    evaluator = Evaluator(task, data, Partition.make())
    params = undecided(task, data)
    _, outputs = evaluator(params)
    files = task.prediction_files(outputs, data)
    assert list(files) == ["MNLI-m.tsv", "MNLI-mm.tsv"]
    matched = files["MNLI-m.tsv"].splitlines()
    assert len(matched) == 11
    mismatched = files["MNLI-mm.tsv"].decode().splitlines()
    assert len(mismatched) == 8
    header, first, *_ = mismatched
    predicted = outputs["label"][10]
    label = GLUE_TASKS["mnli"].labels[predicted]
    assert header == "index\tprediction"
    assert first == f"0\t{label}"


def cola_rows() -> str:
    """20 sentences without a header, every second one acceptable."""
    lines = []
    for index in range(20):
        first, second = word_pair(index)
        label = index % 2
        lines.append(f"s\t{label}\t*\t{first} {second}\n")
    return "".join(lines)


def mrpc_rows() -> str:
    """20 pairs, every second one equivalent."""
    lines = [MRPC]
    for index in range(20):
        first, second = word_pair(index)
        label = index % 2
        lines.append(f"{label}\t1\t2\t{first}\t{second}\n")
    return "".join(lines)


def word_pair(index: int) -> tuple[str, str]:
    """A word, and one from the end of the list."""
    return tiny.WORDS[index], tiny.WORDS[-index]


@pytest.mark.parametrize(
    ("name", "content", "score"),
    [
        pytest.param("cola", cola_rows(), "matthews", id="cola"),
        pytest.param("mrpc", mrpc_rows(), "f1", id="mrpc"),
    ],
)
def test_accuracy_and_task_scores(vocabulary, tmp_path, name, content, score):
    labelled_files.write(tmp_path, train=content, dev=content)
    config = class_config(vocabulary, tmp_path, name)
    task, data = tiny.open_task(config, tmp_path / "run")
    params = undecided(task, data)
    metrics, outputs = by_hand.evaluate(task, data, params)
    predicted = outputs["label"]
    positive = int(predicted.sum())
    hits = int(predicted[1::2].sum())
    assert 0 < positive < 20
    assert {*task.eval_metrics, "examples"} == set(metrics)
    score_function = getattr(text_classification, score)
    expected = score_function(20, 10, positive, hits)
    assert metrics[score] == pytest.approx(expected)
    [file_name] = GLUE_TASKS[name].submission
    written = task.prediction_files(outputs, data)[file_name]
    first, second, *_ = predicted
    assert written.startswith(b"index\tprediction\n0\t%d\n1\t%d\n" % (first, second))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_matthews_and_f1(examples):
    """Against their definitions over the four counts."""
    hits = examples.count((True, True))
    misses = examples.count((True, False))
    false_alarms = examples.count((False, True))
    rest = examples.count((False, False))
    positives = hits + misses
    predicted = hits + false_alarms
    negatives = rest + false_alarms
    predicted_negatives = rest + misses
    counts = (len(examples), positives, predicted, hits)
    product = predicted * positives * negatives * predicted_negatives
    numerator = hits * rest - false_alarms * misses
    matthews = numerator / math.sqrt(product) if product else 0
    found = text_classification.matthews(*counts)
    assert found == pytest.approx(matthews)
    denominator = 2 * hits + false_alarms + misses
    f1 = 2 * hits / denominator if denominator else 0
    found_f1 = text_classification.f1(*counts)
    assert found_f1 == pytest.approx(f1)


def test_test_set_has_predictions_and_no_metrics(vocabulary, tmp_path):
    folder = labelled_files.rte(tmp_path)
    test = "index\tsentence1\tsentence2\n0\tthe\ta\n1\tof\tto\n"
    labelled_files.write(folder, test=test)
    config = class_config(vocabulary, folder, "rte", heldout_split="test")
    task, data = tiny.open_task(config, tmp_path / "run")
    evaluator = Evaluator(task, data, Partition.make())
    params = task.init(jax.random.key(0))
    metrics, outputs = evaluator(params)
    assert metrics == {"examples": 2, "unlabelled": 2}
    files = task.prediction_files(outputs, data)
    assert files["RTE.tsv"].count(b"entailment\n") == 2
    assert evaluator.baselines() == []


def test_assets(rte):
    task, data, _ = rte
    files = data.assets()
    assert files[TOKENIZER_FILE] == data.tokenizer.model
    labels = json.loads(files["labels.json"])
    assert labels == {"task": "rte", "labels": ["entailment", "not_entailment"]}
    assert set(task.inheritance.files) == set(files)


def test_classes_are_read_from_the_files_or_placeholders():
    config = labelled_files.config(KIND, "", "", "own")
    task = TextClassification(config)
    assert task.class_names == ("0", "1")
    assert task.shapes()["head"]["kernel"].shape == (8, 2)
    files = {"labels.json": b'{"task": "own", "labels": ["b", "a", "c"]}'}
    named = TextClassification(config, files)
    assert named.class_names == ("b", "a", "c")
    head = named.shapes()["head"]
    assert head["kernel"].shape == (8, 3)
    assert "labels.json" in failure(TextClassification, config, {"labels.json": b"{}"})
    config.glue.task = "snli"
    snli = TextClassification(config, files)
    assert snli.class_names == GLUE_TASKS["snli"].labels


def write_verdicts(folder, labels: list[str]):
    """20 questions with answers, with these labels in turn."""
    records = []
    for index in range(20):
        label = labels[index % len(labels)]
        question = tiny.WORDS[index]
        answer = tiny.WORDS[-index - 1]
        records.append({"q": question, "a": answer, "verdict": label})
    return labelled_files.json_rows(folder / "data.jsonl", records)


@pytest.fixture
def verdicts(vocabulary, tmp_path):
    """A config of the user's data with two text columns, labelled "yes" and "maybe"."""
    path = write_verdicts(tmp_path, ["yes", "maybe"])
    config = class_config(vocabulary, path, "own", heldout_share=0.3)
    config.own.update(text="q", second="a", label="verdict")
    return config


def verdict_of(row) -> str:
    """The label with which a row of `verdicts` was written."""
    number = tiny.WORDS.index(row.texts[0])
    return "maybe" if number % 2 else "yes"


def test_classes_of_own_data_are_sorted(verdicts):
    data = TextClassificationData(verdicts)
    assert data.classes == ("maybe", "yes")
    examples = len(data.examples(TRAIN)) + len(data.examples(HELDOUT))
    assert examples == 20
    task = TextClassification(verdicts, data.assets())
    assert task.class_names == ("maybe", "yes")


def test_predictions_on_own_data_are_class_names(verdicts):
    data = TextClassificationData(verdicts)
    task = TextClassification(verdicts, data.assets())
    heldout = data.dataset(HELDOUT)
    files = task.prediction_files({"label": heldout.labels}, data)
    content = files["predictions.tsv"].decode()
    header, *lines = content.splitlines()
    assert header == "index\tprediction"
    dataset_rows = heldout.examples.rows
    rows = zip(lines, heldout.labels, dataset_rows, strict=True)
    for line, label, row in rows:
        _, name = line.split("\t")
        class_name = heldout.classes[label]
        assert name == class_name == verdict_of(row)


def test_run_keeps_its_classes_for_other_data(verdicts, tmp_path):
    known = ("yes", "no", "maybe")
    content = json.dumps({"labels": known})
    files = RunFiles(local={"labels.json": content.encode()})
    data = TextClassificationData(verdicts, files)
    assert data.classes == known
    dataset = data.dataset(TRAIN)
    dataset_rows = dataset.examples.rows
    for row, label in zip(dataset_rows, dataset.labels, strict=True):
        assert known[label] == verdict_of(row)
    assert "no (0)" in data.lines(TRAIN)[-1]
    write_verdicts(tmp_path, ["yes", "other"])
    other = TextClassificationData(verdicts, files)
    message = failure(other.examples, TRAIN)
    assert "'other'" in message


def test_held_out_classes_are_matched_by_name(vocabulary, tmp_path):
    """Whichever classes the held-out data have, in any order."""
    heldout = "x,c\ny,b\nz,c\n"
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "abcabc", heldout)
    data = TextClassificationData(config)
    dataset = data.dataset(HELDOUT)
    assert dataset.classes == ("a", "b", "c")
    assert dataset.labels.tolist() == [2, 1, 2]
    assert "'a'" in data.lines(HELDOUT)[-1]


def test_numeric_classes_are_sorted_by_value(vocabulary, tmp_path):
    labels = ["10", "9", "10", "9", "10", ""]
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, labels, "new,9\n")
    data = TextClassificationData(config)
    assert data.classes == ("9", "10")
    assert data.summary(TRAIN).classes == {"9": 2, "10": 3}
    assert "1 row without a label" in "\n".join(data.lines(TRAIN))


def test_classes_only_in_held_out_data_are_refused(vocabulary, tmp_path):
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "aabb", "new,c\n")
    data = TextClassificationData(config)
    assert "'c' only in" in failure(data.notes)


def test_own_data_without_labels_have_only_predictions(vocabulary, tmp_path):
    """No class is missing from them, as they are a test set."""
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "abab", "new,\nother,\n")
    task, data = tiny.open_task(config, tmp_path / "run")
    labels = data.dataset(HELDOUT).labels
    assert labels.tolist() == [-1, -1]
    assert len(data.lines(HELDOUT)) == 1
    assert data.notes() == []
    params = task.init(jax.random.key(0))
    metrics, outputs = by_hand.evaluate(task, data, params)
    assert metrics == {"examples": 2, "unlabelled": 2}
    files = task.prediction_files(outputs, data)
    assert files["predictions.tsv"].count(b"\n") == 3


def test_single_class_is_refused(vocabulary, tmp_path):
    config = labelled_files.own_config(KIND, vocabulary, tmp_path, "aaaa", "new,a\n")
    message = failure(TextClassificationData(config).dataset, TRAIN)
    assert "4 examples with the class 'a' alone" in message


def test_class_without_training_texts_gets_a_note(vocabulary, tmp_path):
    lines = ["text,label\n"]
    for number in range(40):
        is_heldout = holdout.is_member(HELDOUT, f"text {number}", 0.5)
        label = "b" if is_heldout and number > 20 else "a"
        lines.append(f"text {number},{label}\n")
    heldout_lines = [line for line in lines if line.endswith("b\n")]
    assert len(heldout_lines) > 2
    (tmp_path / "own.csv").write_text("".join(lines))
    config = class_config(vocabulary, tmp_path / "own.csv", "own", heldout_share=0.5)
    data = TextClassificationData(config)
    train_counts = data.dataset(TRAIN).class_counts()
    assert train_counts[1] == 0
    heldout_counts = data.dataset(HELDOUT).class_counts()
    assert heldout_counts[1] > 2
    [note] = data.notes()
    assert "to train on: 1 ('b')" in note


def test_equal_texts_with_different_labels_get_a_note(vocabulary, tmp_path):
    """Equal texts are counted as in pandas; a cell with NULL is text."""
    repeated = ["same,a", "same,b", "NULL,a", "NULL,a", "NULL,b"]
    others = ["other,b", "c,a", "d,a", "e,a", "f,a", "g,a", "h,a"]
    rows = ["text,label", *repeated, *others]
    table = "\n".join(rows)
    train = tmp_path / "own.csv"
    train.write_text(f"{table}\n")
    heldout = tmp_path / "heldout.csv"
    heldout.write_text("text,label\nnew,a\nold,b\n")
    config = class_config(vocabulary, train, "own", heldout=str(heldout))
    [note] = TextClassificationData(config).notes()
    assert "5 equal examples" in note
    assert "'same' (a)" in note
