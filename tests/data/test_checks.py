"""What every data set is checked for, on labelled text, whose content is in sight."""

from pathlib import Path
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
    rows = [TextRow((text,), str(position)) for position, text in enumerate(texts)]
    if labels is None:
        labels = [position % 2 for position in range(len(rows))]
    return Dataset(path, "a form", TextRows(rows), classes=classes, labels=np.array(labels))


def numbered(start: int, stop: int, path: str = "/train") -> Dataset:
    return labelled([f"text {number}" for number in range(start, stop)], path=path)


def test_classes_that_can_be_learned():
    assert checks.check_classes(numbered(0, 4)) == []
    assert checks.check_heldout_classes(numbered(4, 8)) == []


def test_classes_of_single_examples():
    """As of ids or whole texts: every class has one."""
    train = labelled(["a", "b", "c"], [0, 1, 2], ("x", "y" * 99, "z"))
    message = failure(checks.check_classes, train)
    for key in ("'/train'", "each of 3 classes", "'x'"):
        assert key in message


def test_classes_of_which_some_have_a_single_example():
    train = labelled("abcde", [0, 1, 2, 0, 0], ("x", "y", "z"))
    (note,) = checks.check_classes(train)
    for key in (": 2 (", "'y'", "'z'"):
        assert key in note


def test_classes_without_an_example_to_train_on():
    train = labelled("abcd", [0, 0, 2, 2], ("x", "y", "z"))
    (note,) = checks.check_classes(train)
    for key in ("to train on: 1 (", "'y'"):
        assert key in note


def test_classes_without_a_held_out_example():
    (note,) = checks.check_heldout_classes(labelled("gh", [1, 1], ("x", "y", "z")))
    for key in (": 2 (", "'x'", "'z'"):
        assert key in note


@pytest.mark.parametrize(("count", "points"), [(1, 100), (2, 50), (19, 5), (20, 0), (300, 0)])
def test_few_held_out_examples(count, points):
    """Those without a label are not counted."""
    labels = [0] * count + [UNLABELLED] * 5
    notes = checks.check_heldout_size(labelled("a" * len(labels), labels))
    if points == 0:
        assert notes == []
    else:
        [note] = notes
        assert note.startswith(f"note: {count} held-out example{'s are' if count > 1 else ' is'} ")
        assert f"{points} points" in note
    assert checks.check_heldout_size(labelled("ab", [UNLABELLED] * 2)) == []


def test_classes_of_a_test_set():
    """Nothing is held out of classes that are not known."""
    assert checks.check_heldout_classes(labelled("ab", [UNLABELLED] * 2)) == []


@pytest.mark.parametrize(
    ("names", "are_numbers"),
    [
        (("0.5", "1.25"), True),
        (("-.5", "+1.0"), True),
        (("1", "2"), False),
        (("0.5", "x"), False),
        (("1.", "2."), False),
    ],
)
def test_classes_that_are_numbers(names, are_numbers):
    notes = checks.check_classes(labelled("abcd", classes=names))
    assert len(notes) == are_numbers
    if are_numbers:
        assert repr(names[0]) in notes[0]
        assert "own_number" in notes[0]


def test_classes_that_are_not_known():
    numbers = labelled("ab", [0.5, 1.5], ())
    assert checks.check_classes(numbers) == checks.check_heldout_classes(numbers) == []


def test_overlap_of_nothing():
    assert checks.check_overlap(numbered(0, 200), numbered(200, 300, "/heldout")) == ""


def test_overlap_of_a_part_that_is_held_out():
    whole = numbered(0, 200)
    train = whole.hold_out(TRAIN, 0.3)
    assert checks.check_overlap(train, whole.hold_out(HELDOUT, 0.3)) == ""


@pytest.mark.parametrize(("equal", "told"), [(1, ""), (2, "2%"), (50, "50%"), (99, "99%")])
def test_overlap_of_some_examples(equal, told):
    """One per cent is not worth a line."""
    note = checks.check_overlap(numbered(0, 200), numbered(200 - equal, 300 - equal, "/heldout"))
    assert bool(note) == bool(told)
    assert told in note


@pytest.mark.parametrize("train", [numbered(0, 60), numbered(0, 200)])
def test_overlap_of_all_examples(train):
    """The same data, or a part of them."""
    message = failure(checks.check_overlap, train, numbered(0, 60, "/heldout"))
    assert "'/train'" in message
    assert "'/heldout'" in message


def test_overlap_of_equal_sizes_alone():
    train = labelled([f"{number:03d}" for number in range(100)])
    heldout = labelled([f"{number:03d}" for number in range(100, 200)])
    assert checks.check_overlap(train, heldout) == ""


def test_overlap_is_estimated_from_a_sample(monkeypatch):
    """Half of the held-out examples are trained on, of which a tenth is read."""
    monkeypatch.setattr(checks, "TRAIN_SAMPLE", 2000)
    monkeypatch.setattr(checks, "MOST_READ", 1000)
    texts = [f"{number:04d}" for number in range(6000)]
    train = labelled(texts[:4000])
    heldout = labelled(texts[3800:4200])
    note = checks.check_overlap(train, heldout)
    share = int(note.split("about ")[1].split("%")[0])
    assert 40 <= share <= 60


def test_overlap_is_not_looked_for_in_a_store():
    """Each look would take a request."""
    train = numbered(0, 200, "gs://bucket/train")
    assert checks.check_overlap(train, numbered(150, 250, "/heldout")) == ""
    assert "gs://" in failure(checks.check_overlap, train, numbered(0, 200, "/heldout"))


def test_contradictions_none():
    assert checks.check_contradictions(numbered(0, 100)) == ""
    repeated = labelled(["a", "b", "a", "b"], [0, 1, 0, 1])
    assert checks.check_contradictions(repeated) == ""


def test_contradictions_equal_examples_of_two_classes():
    texts = ["a", "bb", "a", "cc", "dd", "ee", "bb", "bb"]
    note = checks.check_contradictions(labelled(texts, [0, 0, 1, 0, 0, 0, 0, 0]))
    assert "2 equal examples" in note
    assert "'a' (neg) and 'a' (pos)" in note


def test_contradictions_most_examples():
    message = failure(
        checks.check_contradictions, labelled(["a", "b", "a", "b", "c"], [0, 0, 1, 1, 0])
    )
    assert "'/train'" in message
    assert "4 equal examples" in message


def test_contradictions_of_numbers():
    dataset = labelled(["a", "a", "b", "c"], [0.5, 2.0, 1.0, 1.0], ())
    note = checks.check_contradictions(dataset)
    assert "'a' (0.5) and 'a' (2)" in note


@pytest.mark.parametrize(
    ("labels", "classes"), [([np.nan] * 4, ()), ([UNLABELLED, 1, 0, 0], ("neg", "pos"))]
)
def test_contradictions_without_labels(labels, classes):
    """What is not known contradicts nothing."""
    assert checks.check_contradictions(labelled(["a", "a", "b", "c"], labels, classes)) == ""


@pytest.mark.parametrize("content", [None, b""], ids=["gone", "empty"])
def test_files_without_content_are_not_compared(tmp_path, content):
    """They have nothing in common but that."""
    paths = [str(tmp_path / f"{number}.png") for number in range(6)]
    if content is not None:
        for path in paths:
            Path(path).write_bytes(content)
    classes = ("cat", "dog")
    labels = np.array([0, 1, 0, 1])
    train = Dataset("/x", "a form", ListedImages(paths[:4], paths[:4]), "", classes, labels)
    heldout = Dataset("/y", "a form", ListedImages(paths[4:], paths[4:]), "", classes, labels[:2])
    assert checks.check_contradictions(train) == ""
    assert checks.check_overlap(train, heldout) == ""


def test_contradictions_of_labels_that_are_known_from_the_examples_alone():
    dataset = Dataset("/x", "a form", TextRows([TextRow(("a",), "0")] * 4))
    assert checks.check_contradictions(dataset) == ""


def test_contradictions_in_a_store():
    dataset = labelled(["a", "a"], [0, 1], path="memory://a")
    assert checks.check_contradictions(dataset) == ""


def test_contradictions_only_examples_of_equal_size_are_read():
    read = []

    class Counted(Wrapped):
        def content(self, index: int) -> bytes:
            read.append(index)
            return super().content(index)

    rows = [TextRow((text,), "0") for text in ("a", "bb", "c", "dd", "eee", "dd")]
    dataset = Dataset(
        "/x",
        "a form",
        Counted(TextRows(rows)),
        classes=("neg", "pos"),
        labels=np.array([0, 0, 1, 0, 0, 0]),
    )
    assert checks.check_contradictions(dataset) == ""
    assert sorted(read) == [0, 2]


DOCUMENTS = [f"document {number}".encode() for number in range(200)]


@pytest.mark.parametrize("equal", [0, 1, 2, 100])
def test_equal_documents_are_counted(equal):
    """One per cent is not worth a line."""
    heldout = DOCUMENTS[100 - equal : 200 - equal]
    note = checks.check_documents(DOCUMENTS[:100], heldout, 1000)
    assert bool(note) == (equal > 1)
    if note:
        for key in (f"{equal} of 100 held-out", f"({equal:.1f}%)", "100 of the 1,000 training"):
            assert key in note


def test_repeated_documents_count_each_time():
    note = checks.check_documents(iter(DOCUMENTS[:50] * 2), iter(DOCUMENTS[49:52] * 2), 100)
    assert "2 of 6 held-out" in note
    assert checks.check_documents([], [], 0) == ""


TOKENIZER = SimpleNamespace(unk_id=1, special_ids=[0, 1, 2, 3])


@pytest.mark.parametrize(
    ("unknown", "words", "share", "is_warning"),
    [(0, 10, "0.0%", False), (1, 19, "5.0%", False), (1, 9, "10.0%", True), (5, 5, "50.0%", True)],
)
def test_unknown_tokens(unknown, words, share, is_warning):
    """[PAD], [CLS] and [SEP] do not count."""
    ids = [np.array([2] + [1] * unknown + [3] + [0] * 50), np.full((2, words // 2), 7)]
    ids.append(np.full(words % 2, 9))
    line = checks.check_unknown(ids, TOKENIZER, "these texts")
    assert line.startswith("warning: ") == is_warning
    assert f"these texts: {share}" in line


def test_too_many_unknown_tokens():
    message = failure(checks.check_unknown, [np.array([1, 1, 1, 5])], TOKENIZER, "these texts")
    assert "75.0%" in message


@pytest.mark.parametrize("ids", [[], [np.zeros(0, np.int32)], [np.array([0, 0])]])
def test_no_tokens(ids):
    assert "0.0%" in checks.check_unknown(ids, TOKENIZER, "these texts")


def test_passages_are_found_wherever_they_begin():
    random = np.random.default_rng(0)
    train = random.integers(5, 999, 5000)
    heldout = random.integers(5, 999, 1000)
    blocks = [train[:3000], train[3000:]]
    assert checks.check_passages(blocks, heldout, 3, 5000) == ""
    heldout[500:700] = train[1234:1434]  # of 937 passages the 137 that lie in it
    found = checks.check_passages(blocks, heldout, 3, 5000)
    assert found.startswith(
        "warning: 137 of 937 passages of 64 tokens of the held-out text (14.6%)"
    )
    assert "5,000 of the 5,000 training tokens" in found
    # None crosses the end of a document, in either text.
    heldout[600] = 3
    found = checks.check_passages(blocks, heldout, 3, 5000)
    assert "73 of 873" in found
    assert checks.check_passages(blocks, heldout[:63], 3, 5000) == ""


def test_few_passages_are_told_only_of_a_part_of_the_training_text():
    random = np.random.default_rng(1)
    train = random.integers(5, 999, 2000)
    heldout = random.integers(5, 999, 1063)
    heldout[:84] = train[:84]  # 21 of 1,000 passages
    assert checks.check_passages([train], heldout, 3, 2000) == ""
    assert "21 of 1,000" in checks.check_passages([train], heldout, 3, 20_000)
    heldout[63:84] = 5  # one passage, as a notice on many pages
    assert checks.check_passages([train], heldout, 3, 10**9) == ""


def test_classes_that_join_others_are_told():
    def notes(*classes):
        labels = [*range(len(classes))] * 2
        texts = [f"text {number}" for number in range(len(labels))]
        return checks.check_classes(labelled(texts, labels, classes))

    for joined in ("joy fear", "fear,joy", "joy; fear", "joy|fear|love"):
        [note] = notes("joy", "fear", "love", joined)
        assert repr(joined) in note
    assert notes("New York", "York", "Old") == []
