"""The checks of every data set, mostly on labelled text."""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest

from gmlp_flax.data import checks
from gmlp_flax.data.classes import UNLABELLED
from gmlp_flax.data.dataset import Dataset, Wrapped
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.images.examples import ListedImages
from gmlp_flax.data.text_rows import TextRow, TextRows
from tests.failures import failure


def labelled(texts, labels=None, classes=("neg", "pos"), path: str = "/train") -> Dataset:
    """Texts with labels, by default 0 and 1 in turn."""
    rows = []
    for position, text in enumerate(texts):
        row = TextRow((text,), str(position))
        rows.append(row)
    if labels is None:
        labels = np.arange(len(rows)) % 2
    examples = TextRows(rows)
    label_array = np.array(labels)
    return Dataset(path, "a form", examples, classes=classes, labels=label_array)


def numbered(start: int, stop: int, path: str = "/train") -> Dataset:
    texts = [f"text {number}" for number in range(start, stop)]
    return labelled(texts, path=path)


def unlabelled(texts) -> Dataset:
    return labelled(texts, [UNLABELLED] * len(texts))


def test_learnable_classes_have_no_notes():
    assert checks.check_classes(numbered(0, 4)) == []
    assert checks.check_heldout_classes(numbered(4, 8)) == []


def test_single_examples_of_all_classes_are_refused():
    """If the label column has ids or whole texts, every class has one example."""
    train = labelled(["a", "b", "c"], [0, 1, 2], ("x", "y" * 99, "z"))
    message = failure(checks.check_classes, train)
    for key in ("'/train'", "each of 3 classes", "'x'"):
        assert key in message


def test_classes_with_a_single_example_are_noted():
    train = labelled("abcde", [0, 1, 2, 0, 0], ("x", "y", "z"))
    (note,) = checks.check_classes(train)
    for key in (": 2 (", "'y'", "'z'"):
        assert key in note


def test_classes_without_a_training_example_are_noted():
    train = labelled("abcd", [0, 0, 2, 2], ("x", "y", "z"))
    (note,) = checks.check_classes(train)
    for key in ("to train on: 1 (", "'y'"):
        assert key in note


def test_classes_without_a_held_out_example_are_noted():
    heldout = labelled("gh", [1, 1], ("x", "y", "z"))
    (note,) = checks.check_heldout_classes(heldout)
    for key in (": 2 (", "'x'", "'z'"):
        assert key in note


@pytest.mark.parametrize(("count", "points"), [(1, 100), (2, 50), (19, 5)])
def test_few_held_out_examples_are_noted(count, points):
    """Examples without a label are not counted."""
    labels = [0] * count
    labels += [UNLABELLED] * 5
    dataset = labelled("a" * len(labels), labels)
    (note,) = checks.check_heldout_size(dataset)
    examples = "example is" if count == 1 else "examples are"
    assert note.startswith(f"note: {count} held-out {examples} ")
    assert f"{points} points" in note


@pytest.mark.parametrize("count", [20, 300])
def test_enough_held_out_examples_are_not_noted(count):
    dataset = labelled("a" * count, [0] * count)
    assert checks.check_heldout_size(dataset) == []


def test_unlabelled_held_out_examples_are_not_noted():
    assert checks.check_heldout_size(unlabelled("ab")) == []


def test_unlabelled_examples_have_no_missing_classes():
    assert checks.check_heldout_classes(unlabelled("ab")) == []


@pytest.mark.parametrize("names", [("0.5", "1.25"), ("-.5", "+1.0")])
def test_classes_with_decimal_points_are_noted(names):
    dataset = labelled("abcd", classes=names)
    (note,) = checks.check_classes(dataset)
    assert repr(names[0]) in note
    assert "own_number" in note


@pytest.mark.parametrize("names", [("1", "2"), ("0.5", "x"), ("1.", "2.")])
def test_other_classes_are_not_taken_for_numbers(names):
    dataset = labelled("abcd", classes=names)
    assert checks.check_classes(dataset) == []


def test_numbers_to_predict_have_no_notes_on_classes():
    numbers = labelled("ab", [0.5, 1.5], ())
    assert checks.check_classes(numbers) == []
    assert checks.check_heldout_classes(numbers) == []


def test_different_examples_are_not_an_overlap():
    heldout = numbered(200, 300, "/heldout")
    assert checks.check_overlap(numbered(0, 200), heldout) == ""


def test_held_out_parts_do_not_overlap():
    whole = numbered(0, 200)
    train = whole.hold_out(TRAIN, 0.3)
    heldout = whole.hold_out(HELDOUT, 0.3)
    assert checks.check_overlap(train, heldout) == ""


@pytest.mark.parametrize("equal", [2, 50, 99])
def test_overlap_of_some_examples_is_reported(equal):
    first = 200 - equal
    heldout = numbered(first, 300 - equal, "/heldout")
    note = checks.check_overlap(numbered(0, 200), heldout)
    assert f"{equal}%" in note


def test_overlap_of_one_percent_is_not_reported():
    heldout = numbered(199, 299, "/heldout")
    assert checks.check_overlap(numbered(0, 200), heldout) == ""


@pytest.mark.parametrize("size", [60, 200], ids=["the same data", "a part of the data"])
def test_overlap_of_all_examples_is_refused(size):
    train = numbered(0, size)
    heldout = numbered(0, 60, "/heldout")
    message = failure(checks.check_overlap, train, heldout)
    assert "'/train'" in message
    assert "'/heldout'" in message


def test_examples_of_equal_size_are_not_an_overlap():
    texts = [f"{number:03d}" for number in range(200)]
    train = labelled(texts[:100])
    heldout = labelled(texts[100:])
    assert checks.check_overlap(train, heldout) == ""


def test_overlap_is_estimated_from_a_sample(monkeypatch):
    """Half of the held-out examples are trained on; a tenth of them is read."""
    monkeypatch.setattr(checks, "TRAIN_SAMPLE", 2000)
    monkeypatch.setattr(checks, "MOST_READ", 1000)
    texts = [f"{number:04d}" for number in range(6000)]
    train = labelled(texts[:4000])
    heldout = labelled(texts[3800:4200])
    note = checks.check_overlap(train, heldout)
    share = re.search(r"about (\d+)%", note).group(1)
    assert 40 <= int(share) <= 60


def test_partial_overlap_is_not_searched_for_in_a_bucket():
    """Each read would be a request. Only data sets that are wholly equal are noticed."""
    train = numbered(0, 200, "gs://bucket/train")
    overlapping = numbered(150, 250, "/heldout")
    equal = numbered(0, 200, "/heldout")
    assert checks.check_overlap(train, overlapping) == ""
    assert "gs://" in failure(checks.check_overlap, train, equal)


def test_different_examples_do_not_contradict_each_other():
    assert checks.check_contradictions(numbered(0, 100)) == ""


def test_equal_examples_of_one_class_do_not_contradict_each_other():
    repeated = labelled(["a", "b", "a", "b"], [0, 1, 0, 1])
    assert checks.check_contradictions(repeated) == ""


def test_equal_examples_of_two_classes_are_reported():
    texts = ["a", "bb", "a", "cc", "dd", "ee", "bb", "bb"]
    dataset = labelled(texts, [0, 0, 1, 0, 0, 0, 0, 0])
    note = checks.check_contradictions(dataset)
    assert "2 equal examples" in note
    assert "'a' (neg) and 'a' (pos)" in note


def test_contradictions_of_most_examples_are_refused():
    dataset = labelled(["a", "b", "a", "b", "c"], [0, 0, 1, 1, 0])
    message = failure(checks.check_contradictions, dataset)
    assert "'/train'" in message
    assert "4 equal examples" in message


def test_equal_examples_with_two_numbers_are_reported():
    dataset = labelled(["a", "a", "b", "c"], [0.5, 2.0, 1.0, 1.0], ())
    note = checks.check_contradictions(dataset)
    assert "'a' (0.5) and 'a' (2)" in note


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([np.nan] * 4, ()),
        ([UNLABELLED, 1, 0, 0], ("neg", "pos")),
    ],
)
def test_unlabelled_examples_contradict_nothing(labels, classes):
    dataset = labelled(["a", "a", "b", "c"], labels, classes)
    assert checks.check_contradictions(dataset) == ""


def listed(path: str, files: list[str], labels: list[int]) -> Dataset:
    return Dataset(
        path=path,
        form="a form",
        examples=ListedImages(files, files),
        classes=("cat", "dog"),
        labels=np.array(labels),
    )


@pytest.mark.parametrize("is_written", [False, True], ids=["missing", "empty"])
def test_files_without_content_are_not_compared(tmp_path, is_written):
    """Missing and empty files would all be equal."""
    files = []
    for number in range(6):
        path = tmp_path / f"{number}.png"
        if is_written:
            path.write_bytes(b"")
        files.append(str(path))
    train_labels = [0, 1, 0, 1]
    train = listed("/x", files[:4], train_labels)
    heldout = listed("/y", files[4:], [0, 1])
    assert checks.check_contradictions(train) == ""
    assert checks.check_overlap(train, heldout) == ""


def test_data_sets_without_a_list_of_labels_have_no_contradictions():
    row = TextRow(("a",), "0")
    dataset = Dataset("/x", "a form", TextRows([row] * 4))
    assert checks.check_contradictions(dataset) == ""


def test_contradictions_are_not_searched_for_in_a_bucket():
    dataset = labelled(["a", "a"], [0, 1], path="memory://a")
    assert checks.check_contradictions(dataset) == ""


def test_only_examples_of_equal_size_are_read():
    read = []

    class Counted(Wrapped):
        def content(self, index: int) -> bytes:
            read.append(index)
            return super().content(index)

    dataset = labelled(["a", "bb", "c", "dd", "eee", "dd"], [0, 0, 1, 0, 0, 0])
    dataset = dataclasses.replace(dataset, examples=Counted(dataset.examples))
    assert checks.check_contradictions(dataset) == ""
    assert sorted(read) == [0, 2]


DOCUMENTS = [f"document {number}".encode() for number in range(200)]


@pytest.mark.parametrize("equal", [2, 99])
def test_equal_documents_are_counted(equal):
    heldout = DOCUMENTS[100 - equal : 200 - equal]
    train = DOCUMENTS[:100]
    note = checks.check_documents(train, heldout, 1000)
    assert f"{equal} of 100 held-out" in note
    assert f"({equal:.1f}%)" in note
    assert "100 of the 1,000 training" in note


@pytest.mark.parametrize("equal", [0, 1])
def test_one_percent_of_equal_documents_is_not_reported(equal):
    heldout = DOCUMENTS[100 - equal : 200 - equal]
    train = DOCUMENTS[:100]
    assert checks.check_documents(train, heldout, 1000) == ""


def test_held_out_documents_that_are_all_trained_on_are_refused():
    message = failure(checks.check_documents, DOCUMENTS, DOCUMENTS[:100], 200)
    assert message.startswith(
        "all of 100 held-out documents that were compared are also trained on: "
    )


def test_repeated_documents_count_each_time():
    train = DOCUMENTS[:50] * 2
    heldout = DOCUMENTS[49:52] * 2
    note = checks.check_documents(iter(train), iter(heldout), 100)
    assert "2 of 6 held-out" in note


def test_no_documents_are_not_reported():
    assert checks.check_documents([], [], 0) == ""


PAD = 0
UNK = 1
CLS = 2
SEP = 3
TOKENIZER = SimpleNamespace(unk_id=UNK, special_ids=[PAD, UNK, CLS, SEP])


@pytest.mark.parametrize(
    ("unknown", "words", "share", "is_warning"),
    [
        (0, 10, "0.0%", False),
        (1, 19, "5.0%", False),
        (1, 9, "10.0%", True),
        (5, 5, "50.0%", True),
    ],
)
def test_share_of_unknown_tokens_ignores_other_special_tokens(unknown, words, share, is_warning):
    unknown_ids = [UNK] * unknown
    padding = [PAD] * 50
    with_unknown = np.array([CLS, *unknown_ids, SEP, *padding])
    half = words // 2
    pairs_of_words = np.full((2, half), 7)
    count = words - 2 * half
    other_words = np.full(count, 9)
    ids = [with_unknown, pairs_of_words, other_words]
    line = checks.check_unknown(ids, TOKENIZER, "these texts")
    assert line.startswith("warning: ") == is_warning
    assert f"these texts: {share}" in line


def test_mostly_unknown_tokens_are_refused():
    ids = [np.array([1, 1, 1, 5])]
    message = failure(checks.check_unknown, ids, TOKENIZER, "these texts")
    assert "75.0%" in message


@pytest.mark.parametrize("ids", [[], [np.zeros(0, np.int32)], [np.array([0, 0])]])
def test_texts_without_tokens_have_no_unknown_tokens(ids):
    line = checks.check_unknown(ids, TOKENIZER, "these texts")
    assert "0.0%" in line


def test_equal_passages_are_found_at_any_offset():
    random = np.random.default_rng(0)
    train = random.integers(5, 999, 5000)
    heldout = random.integers(5, 999, 1000)
    blocks = [train[:3000], train[3000:]]
    assert checks.check_passages(blocks, heldout, 3, 5000) == ""
    heldout[500:700] = train[1234:1434]  # it has 137 of the 937 passages of 64 tokens
    found = checks.check_passages(blocks, heldout, 3, 5000)
    assert found.startswith(
        "warning: 137 of 937 passages of 64 tokens of the held-out text (14.6%)"
    )
    assert "5,000 of the 5,000 training tokens" in found
    # No passage crosses the end of a document, in either text.
    heldout[600] = SEP
    found = checks.check_passages(blocks, heldout, 3, 5000)
    assert "73 of 873" in found
    first = heldout[:63]
    assert checks.check_passages(blocks, first, 3, 5000) == ""


def test_few_passages_are_reported_if_only_a_part_of_the_training_text_is_read():
    random = np.random.default_rng(1)
    train = random.integers(5, 999, 2000)
    heldout = random.integers(5, 999, 1063)
    heldout[:84] = train[:84]  # 21 of 1,000 passages
    assert checks.check_passages([train], heldout, 3, 2000) == ""
    note = checks.check_passages([train], heldout, 3, 20_000)
    assert "21 of 1,000" in note
    heldout[63:84] = 5  # only one passage is left, as if many pages had the same notice
    assert checks.check_passages([train], heldout, 3, 10**9) == ""


def class_notes(*classes: str) -> list[str]:
    """The notes on data with two examples of each class."""
    numbers = list(range(len(classes)))
    labels = [*numbers, *numbers]
    texts = [f"text {number}" for number in range(len(labels))]
    dataset = labelled(texts, labels, classes)
    return checks.check_classes(dataset)


@pytest.mark.parametrize("joined", ["joy fear", "fear,joy", "joy; fear", "joy|fear|love"])
def test_classes_that_join_other_classes_are_noted(joined):
    (note,) = class_notes("joy", "fear", "love", joined)
    assert repr(joined) in note


def test_classes_that_only_share_a_word_are_not_noted():
    assert class_notes("New York", "York", "Old") == []
