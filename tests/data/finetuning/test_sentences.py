"""Labelled sentences from every kind of file, and one-line messages of what is wrong."""

import itertools
import json

import numpy as np
import pyarrow as pa
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.finetuning import sentences
from gmlp_flax.data.finetuning.glue import GLUE_TASKS, own_task
from gmlp_flax.data.finetuning.sentences import UNLABELLED, class_name, classes, open_sentences
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecords
from tests import failures
from tests.data import writers

SST2 = "sentence\tlabel\na fine film \t1\ndull\t0\n"
MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
)
OWN = own_task(("text",), "label", ("neg", "pos"))
TRAIN = Side("train")


def mnli_row(index: int, premise: str, label: str = "neutral") -> str:
    return f"{index}\tp{index}\tp{index}n\tfiction\t(A a)\t{premise}\tIt is {index}.\tx\t{label}\n"


def write(path, text):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(path, task="sst2", side="train", bad=None, **options):
    return open_sentences(
        str(path), GLUE_TASKS[task] if isinstance(task, str) else task, Side(side, **options), bad
    )


def firsts(found):
    return [texts[0] for texts in found.texts]


def both(path, task="sst2", share=0.1):
    return [read(path, task, side, heldout_share=share) for side in ("train", "heldout")]


def failure(path, task="sst2", side="train", **options) -> str:
    return failures.failure(read, path, task, side, **options)


@pytest.mark.smoke
def test_a_file(tmp_path):
    found = read(write(tmp_path / "a.tsv", SST2))
    assert found.texts == [("a fine film",), ("dull",)] and found.ids == ["0", "1"]
    assert found.labels.tolist() == [1, 0] and found.labels.dtype == found.part.dtype == np.int32
    assert found.part.tolist() == [0, 0] and len(found) == 2 and found.dropped == 0


# The headers of GLUE's files, a row of each, and its content: first, second, label, id.
GLUE_FILES = {
    "cola": ("", "gj04\t0\t*\tThe ball wriggled.\n", ("The ball wriggled.", None, 0, "0")),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n",
        "1\t702876\t702977\tOne.\tTwo.\r\n",
        ("One.", "Two.", 1, "0"),
    ),
    "mnli": (
        MNLI_HEADER,
        mnli_row(7, "They go.", "contradiction"),
        ("They go.", "It is 7.", 2, "7"),
    ),
    "snli": (
        "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tcaptionID\tpairID\tlabel1\n",
        "neutral\t( A )\tA man.\tA woman.\t34#4\t34#4r1n\tneutral\n",
        ("A man.", "A woman.", 1, "34#4r1n"),
    ),
}


@pytest.mark.parametrize("task", GLUE_FILES)
def test_the_files_of_glue(tmp_path, task):
    header, row, (first, second, label, own_id) = GLUE_FILES[task]
    found = read(write(tmp_path / "train.tsv", header + row), task)
    assert found.texts == [(first,) if second is None else (first, second)]
    assert found.labels.tolist() == [label] and found.ids == [own_id]


def test_json_lines_have_names_and_numbers(tmp_path):
    rows = [
        {"premise": "A b.", "hypothesis": "A.", "label": "entailment", "idx": 5},
        {"sentence1": "A b.", "sentence2": "B.", "label": 1, "idx": 6},
        {"sentence1": "A b.", "sentence2": "C.", "gold_label": "0", "idx": 7},
    ]
    found = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)), "rte")
    assert found.labels.tolist() == [0, 1, 0] and found.ids == ["5", "6", "7"]
    assert [second for _, second in found.texts] == ["A.", "B.", "C."]


def test_a_folder_as_glue_ships_it(tmp_path):
    parts = ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")
    premises = dict(zip(parts, ("abc", "de", "fgh", "i", "jk"), strict=True))
    for name, texts in premises.items():
        write(
            tmp_path / f"{name}.tsv",
            MNLI_HEADER + "".join(mnli_row(i, text) for i, text in enumerate(texts)),
        )
    write(tmp_path / "original" / "multinli_1.0_train.txt", "not read")
    train, heldout = both(tmp_path, "mnli")
    assert firsts(train) == list("abc") and train.part.tolist() == [0, 0, 0]
    assert firsts(heldout) == list("defgh") and heldout.part.tolist() == [0, 0, 1, 1, 1]
    assert heldout.ids == ["0", "1", "0", "1", "2"]
    for split, expected in (("test", "ijk"), ("dev_mismatched", "fgh")):
        assert firsts(
            read(tmp_path, "mnli", "heldout", heldout_share=0.1, heldout_split=split)
        ) == list(expected)
    assert firsts(read(tmp_path, "mnli", "heldout")) == list("defgh")  # as a path of its own
    assert firsts(read(tmp_path, "mnli", "train", split="dev_matched")) == list("de")


@pytest.mark.parametrize("field", ["tag", "split"])
def test_rows_that_name_their_split(tmp_path, field):
    """In either case; each split has ids of its own."""
    tags = ("Train", "heldout", "train", "test")
    rows = [
        {"sentence": f"s{i}", "label": 0, "idx": i // 2, field: tag} for i, tag in enumerate(tags)
    ]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    assert [firsts(side) for side in both(path, share=0.5)] == [["s0", "s2"], ["s1"]]
    assert firsts(read(path, side="heldout", heldout_share=0.5, heldout_split="test")) == ["s3"]


def test_a_tag_that_is_no_split(tmp_path):
    """If some tags are splits, the others may be meant to be held out."""
    rows = [
        {"sentence": f"s{i}", "label": 0, "tag": tag}
        for i, tag in enumerate(("sport", "news", "sport"))
    ]
    assert len(read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)))) == 3
    rows[0]["tag"] = "train"
    assert "'news' in another: expected train" in failure(
        write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    )


def test_a_share_of_the_one_split(tmp_path):
    write(tmp_path / "train.tsv", "sentence\tlabel\n" + "".join(f"s {i}\t1\n" for i in range(100)))
    train, heldout = both(tmp_path, share=0.3)
    assert len(train) + len(heldout) == 100 and len(heldout) > 10
    assert len(read(tmp_path, side="heldout")) == 100
    assert "leave nothing on the side 'heldout'" in failure(
        tmp_path, side="heldout", heldout_share=1e-9
    )


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record", "parquet"])
def test_tfds(tmp_path, file_format, monkeypatch):
    def records(split, numbers):
        texts = ((f"{split} {i}".encode(), i) for i in numbers)
        return [
            writers.example(premise=text, hypothesis=b"h", label=i % 3, idx=i) for text, i in texts
        ]

    sizes = {
        "train": [2, 3],
        "validation_matched": [2],
        "validation_mismatched": [1],
        "test_matched": [1],
    }
    shards = {
        split: [records(split, range(10 * n, 10 * n + size)) for n, size in enumerate(counts)]
        for split, counts in sizes.items()
    }
    text, label = tfds.features.Text(), tfds.features.ClassLabel(names=GLUE_TASKS["mnli"].labels)
    features = {"premise": text, "hypothesis": text, "label": label, "idx": np.int64}
    writers.tfds_folder(tmp_path / "glue" / "mnli" / "2.0.0", shards, file_format, **features)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    train, heldout = both("tfds:glue/mnli", "mnli")
    assert firsts(train) == ["train 0", "train 1", "train 10", "train 11", "train 12"]
    assert train.labels.tolist() == [0, 1, 1, 2, 0] and train.ids == ["0", "1", "10", "11", "12"]
    assert firsts(heldout) == [
        "validation_matched 0",
        "validation_matched 1",
        "validation_mismatched 0",
    ]
    assert (
        heldout.part.tolist() == [0, 0, 1] and [second for _, second in heldout.texts] == ["h"] * 3
    )


def test_a_tfds_folder_of_another_task(tmp_path):
    """Labels are known by their names, whatever their order; a missing column is a bad row."""
    features = {
        "sentence": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["positive", "negative"]),
    }
    folder = tmp_path / "1.0.0"
    writers.tfds_folder(
        folder, {"train": [[writers.example(sentence=b"fine", label=0)]]}, "tfrecord", **features
    )
    assert read(folder).labels.tolist() == [1]
    assert "no text 'question1'" in failure(folder, "qqp")
    assert "the label 'positive'" in failure(folder, "cola")


def test_rows_without_a_gold_label_are_left_out_and_counted(tmp_path):
    labels = ("neutral", "-", -1, "contradiction", None)
    rows = [
        {"sentence1": f"p{i}", "sentence2": "h", "gold_label": label}
        for i, label in enumerate(labels)
    ]
    found = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)), "snli")
    assert (firsts(found), found.dropped, found.labels.tolist()) == (["p0", "p3"], 3, [1, 2])


def test_a_test_set_is_for_predictions_alone(tmp_path):
    path = write(tmp_path / "test.tsv", "index\tsentence\n0\tgood\n1\tbad\n")
    found = read(path, side="heldout")
    assert found.labels.tolist() == [UNLABELLED] * 2 and found.dropped == 0
    assert "has no labels to train on: expected a column 'gold_label' or 'label' " in failure(path)
    assert firsts(read(path, "cola", "heldout")) == ["good", "bad"]  # CoLA's has a header, too


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("sentence\tlabel\n\nfine\t1\n\t\n", "line 4: an empty sentence 'sentence'"),
        ("index\tsentence\tlabel\n1\ta\t1\n2\tb\t1\n1\tc\t1\n", "line 4: the id '1'"),
        ("sentence\tlabel\n", "holds no example"),
    ],
)
def test_bad_tsv(tmp_path, content, words):
    message = failure(write(tmp_path / "a.tsv", content))
    assert words in message and "a.tsv" in message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"sentence": 3, "label": 1}, "no text 'sentence', found 'label', 'sentence'"),
        (
            {"sentence": "fine", "label": "good"},
            "the label 'good'; expected 'negative', 'positive'",
        ),
        ({"sentence": "fine", "label": True}, "the label True"),
        ({"sentence": "fine", "label": ["neg"]}, "the label ['neg']"),
        ({"sentence": "fine", "label": 1, "id": [0]}, "the id [0]"),
    ],
)
def test_bad_values(tmp_path, row, words):
    message = failure(
        write(tmp_path / "a.jsonl", writers.json_lines({"sentence": "dull", "label": 0}, row))
    )
    assert f"a.jsonl, line 2: {words}" in message and "max_bad_records=0" in message


def test_bad_rows_are_skipped_up_to_a_limit(tmp_path):
    path = write(tmp_path / "a.tsv", SST2 + "broken\nfine\t1\n\t0\n")
    bad = BadRecords(2)
    found = read(path, bad=bad)
    assert firsts(found) == ["a fine film", "dull", "fine"] and found.ids == ["0", "1", "3"]
    assert bad.count == 2 and "line 4" in bad.first[0] and "line 6" in bad.first[1]
    assert "line 6" in failure(path, bad=BadRecords(1))


def test_bad_splits(tmp_path):
    folder, path = tmp_path / "sst2", write(tmp_path / "sst2" / "train.tsv", SST2)
    assert "has no split 'dev': it names no splits" in failure(path, split="dev")
    write(folder / "test.tsv", SST2)
    assert "has no split 'my_train': it has 'test', 'train'" in failure(folder, split="my_train")
    assert "only 'test', 'train'" in failure(folder, side="heldout")


@pytest.mark.parametrize(
    ("name", "task", "sizes"), [("", "sst2", [67_349, 872]), ("rte.jsonl.xz", "rte", [2_490, 277])]
)
def test_real_data(shared_data, name, task, sizes):
    sides = both(shared_data(f"glue/{name}"), task)
    assert [*map(len, sides)] == sizes
    assert all(
        set(side.labels.tolist()) == set(range(len(GLUE_TASKS[task].labels))) for side in sides
    )


def labelled(path, task):
    return task._replace(labels=open_sentences(str(path), task, TRAIN).names)


def test_own_labels_may_be_negative_and_empty_cells_have_none(tmp_path):
    """pandas writes whole numbers as floats if other cells are empty, and so in one file of two."""
    rows = (
        f"text {i}\t{(-1, 0, 10, ('', chr(92) + 'N')[i % 2], ('nan', '#VALUE!')[i % 2])[i % 5]}\n"
        for i in range(10)
    )
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(rows))
    task = labelled(path, own_task(("text",), "label"))
    found = read(path, task)
    assert (
        task.labels == ("-1", "0", "10")
        and found.labels.tolist() == [0, 1, 2] * 2
        and found.dropped == 4
    )
    assert "the label '7'; expected '-1'" in failure(
        write(tmp_path / "b.tsv", "text\tlabel\nx\t7\n"), task
    )
    pair = write(
        tmp_path / "c.jsonl", writers.json_lines({"premise": "x", "hypothesis": "y", "label": 0})
    )
    assert "found 'hypothesis', 'label', 'premise'; config.own.text, own.second" in failure(
        pair, task
    )
    again = read(write(tmp_path / "b.csv", "text,label\nx,10.0\ny,-1.0\nz,\n"), task)
    assert again.labels.tolist() == [2, 0] and again.dropped == 1
    old = read(path, task._replace(labels=("-1.0", "0.0", "10.0")))  # names that a run has kept
    assert old.labels.tolist() == found.labels.tolist()


def test_classes_of_tfds_may_be_numbers(tmp_path):
    """Records hold a class's position; -1 is none."""
    features = {"text": tfds.features.Text(), "stars": tfds.features.ClassLabel(names=["1", "2"])}
    made = [
        writers.example(text=text.encode(), stars=stars)
        for text, stars in (("a", 0), ("b", 1), ("c", -1))
    ]
    folder = writers.tfds_folder(tmp_path / "1.0.0", {"train": [made]}, "tfrecord", **features)
    task = labelled(folder, own_task(("text",), "stars"))
    found = read(folder, task)
    assert (
        task.labels == ("1", "2")
        and firsts(found) == ["a", "b"]
        and found.labels.tolist() == [0, 1]
    )


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("text", "label", "missing"), [("texts", "score", "texts"), ("sentence", "label", "label")]
)
def test_a_wrong_column_is_answered_with_those_that_are_there(
    tmp_path, suffix, text, label, missing
):
    path = writers.table(
        tmp_path / f"own.{suffix}", [{"sentence": f"line {i}", "score": i % 2} for i in range(4)]
    )
    message = failure(path, own_task((text,), label), heldout_share=0.5)
    assert all(word in message for word in (repr(missing), "'sentence'", "'score'"))


def test_own_columns_and_labels(tmp_path):
    """Labels are those of the data: numbers by size, words by letters; a column that holds no
    classes is refused."""
    rows = ["review\tstars\ttag"] + [
        f"text {i}\t{(10, 9, 2)[i % 3]}\t{'dev' if i > 5 else 'train'}" for i in range(8)
    ]
    path = write(tmp_path / "reviews.tsv", "\n".join(rows) + "\n")
    task = labelled(path, own_task(("review",), "stars"))
    train, heldout = both(path, task)
    assert task.labels == ("2", "9", "10") and train.labels.tolist() == [2, 1, 0, 2, 1, 0]
    assert firsts(heldout) == ["text 6", "text 7"] and heldout.labels.tolist() == [2, 1]
    assert heldout.notes == (
        f"the column 'tag' or 'split' of {path} decides what is trained on and what is held out",
    )
    for text, label, words in (
        ("stars", "review", "6 different values in 6 rows in the column of labels, 'review'"),
        ("review", "star", "no column 'star' in the header, found 'review', 'stars', 'tag'"),
        ("reviews", "stars", "no column 'reviews'"),
    ):
        with pytest.raises(DataError, match=words):
            open_sentences(path, own_task((text,), label), TRAIN)


def test_own_rows_that_could_be_misread_are_refused(tmp_path):
    """Of two words, which one a number means would be a guess; words are stripped."""
    row, made = {"text": "a", "label": 1}, itertools.count()

    def path(*rows):
        return write(
            tmp_path / f"{next(made)}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
        )

    assert "the label 1; expected 'neg', 'pos', which the examples to train on have (" in failure(
        path(row), OWN
    )
    new, rows = own_task(("text",), "label"), [row | {"label": "neg "}, row | {"label": "pos"}]
    assert open_sentences(path(*rows, *rows), new, TRAIN).names == ("neg", "pos")
    assert read(path(row | {"label": "neg "}), OWN).labels.tolist() == [0]
    for label in ({"a": 1}, ["a", "b"], "['a', 'b']"):
        message = failures.failure(open_sentences, path(row | {"label": label}, *rows), new, TRAIN)
        assert f"the label {label!r}; expected a word or a number; several labels" in message
    assert "an empty sentence 'text', 'nan'" in failure(path(row | {"text": "nan"}), OWN)


def test_own_splits_are_words_anywhere_in_names(tmp_path):
    """A file whose split was not seen would be left out in silence; in GLUE's folders dev_ids.tsv
    holds no examples."""
    for name in ("train_data", "val_1", "notes"):
        rows = [{"text": f"{name} {i}", "label": ("neg", "pos")[i % 2]} for i in range(4)]
        writers.table(tmp_path / f"{name}.csv", rows)
    train, heldout = both(tmp_path, OWN)
    assert firsts(train) == [f"train_data {i}" for i in range(4)]
    assert firsts(heldout) == [f"val_1 {i}" for i in range(4)]
    assert any("notes.csv" in note and "val_1" not in note for note in train.notes)
    write(tmp_path / "dev_mismatched.csv", "text,label\na,neg\n")  # MNLI alone has scores for parts
    assert read(tmp_path, OWN, "heldout", heldout_split="dev_mismatched").part.tolist() == [0]
    write(tmp_path / "train_test.csv", "text,label\na,neg\n")
    assert "'train_test'" in failure(tmp_path, OWN)
    glue = tmp_path / "mrpc"
    for name in ("train", "dev", "dev_ids"):
        write(glue / f"{name}.tsv", SST2)
    assert len(read(glue, side="heldout")) == 2


def test_labels_are_those_of_the_training_split(tmp_path):
    """A column of labels named `tag` holds no splits; a test set may have a number that stands for
    no label."""
    for split, labels in (("train", "ab"), ("dev", "ab"), ("test", ["-1"])):
        rows = [{"text": f"{split} {i}", "tag": labels[i % len(labels)]} for i in range(6)]
        writers.table(tmp_path / f"{split}.csv", rows)
    task = labelled(tmp_path, own_task(("text",), "tag"))
    assert task.labels == ("a", "b") and [len(side) for side in both(tmp_path, task)] == [6, 6]
    assert "the label '-1'; expected 'a', 'b'" in failure(
        tmp_path, task, "heldout", heldout_split="test"
    )
    path = write(
        tmp_path / "one.csv",
        "text,tag\n" + "".join(f"{i},{('train', 'test')[i % 2]}\n" for i in range(6)),
    )
    task = labelled(path, task._replace(labels=()))
    assert task.labels == ("test", "train") and len(read(path, task)) == 6


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("column", "values", "seems"),
    [
        ("set", ["train", "test"], "seems to name splits"),
        ("is_valid", ["True", "False"], "seems to name splits"),
        ("partition", ["Train", "dev"], "seems to name splits"),
        ("tag", ["train_set", "test_set"], "seems to name splits"),
        ("Fold", ["0", "1"], "may number folds or splits"),
    ],
)
def test_own_rows_of_splits_that_are_not_read(tmp_path, suffix, column, values, seems):
    """Else the rows to test on would be trained on; folds are named."""
    rows = [{"text": f"text {i}", "label": "ab"[i % 2], column: values[i > 7]} for i in range(12)]
    path, task = writers.table(tmp_path / f"a.{suffix}", rows), OWN._replace(labels=("a", "b"))
    told = read(path, task).notes[0] if column == "Fold" else failure(path, task)
    assert f"the column {column!r} {seems} ({', '.join(map(repr, sorted(values)))})" in told


def test_a_table_of_another_encoding_is_refused_with_the_command(tmp_path):
    task, text = own_task(("text",), "label"), '"text",label\ncafé,a\n'
    zero = "line 1: not UTF-8 (a zero byte, as UTF-16 has); convert it, e.g. with iconv -f UTF-16{} -t UTF-8"
    for encoding, words in (
        (
            "latin-1",
            "line 2: not UTF-8 (byte 0xe9); convert it, e.g. with iconv -f WINDOWS-1252 -t UTF-8 if that byte",
        ),
        ("utf-16-le", zero.format("LE")),
        ("utf-16-be", zero.format("BE")),
    ):
        assert words in failures.failure(
            open_sentences, write(tmp_path / "a.csv", text.encode(encoding)), task, TRAIN
        )


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("5.0", "5"),
        (5.0, "5"),
        (-0.0, "0"),
        ("0.", "0"),
        ("-1.00", "-1"),
        ("2.5", "2.5"),
        ("007", "007"),
        (True, "True"),
        (" neg ", "neg"),
        ("u\u0308ber", "\u00fcber"),
        ("9" * 5000 + ".0", "9" * 5000 + ".0"),
    ],
)
def test_class_name(value, name):
    assert class_name(value) == name


def test_numbers_go_by_size_and_words_by_letters():
    values = {"10": 2, "9": 2, "-1.0": 2, "b": 2, "a": 2, "9" * 5000: 2}
    assert classes(values, "stars")[0] == ("-1", "9", "10", "9" * 5000, "a", "b")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"2.559": 1, "1": 9}, "real numbers such as '2.559' stars"),
        ({"0.5": 5, "1.0": 5, "1.5": 5}, "finetune_glue:own_number"),
        ({"3,25": 5, "4,0": 5}, "real numbers such as '3,25'"),
        ({"1e-3": 5, "2e-3": 5}, "real numbers"),
        ({"a": 1, "b": 1, "c": 1}, "3 different values in 3 rows"),
        ({"a": 9}, "1 different values in 9 rows"),
        ({"good": 20, "bad": 20, "goood": 1}, "one row of the class 'goood'"),
        ({"good": 20, "bad": 1, "baad": 1}, "one row of the class 'baad', as have 1 more classes"),
        ({"Pos": 20, "pos": 5, "neg": 9}, "'Pos' (20 rows) and 'pos' (5)"),
        ({"so so": 20, "so  so": 5}, "differ only in capitals, blanks"),
        ({"a\u00a0b": 20, "a b": 5}, "differ only in capitals, blanks"),
        # the sign of Angstrom, and the letter
        ({"\u212b": 20, "\u00e5": 5}, "differ only in capitals"),
        ({"a\u200b": 20, "a": 5}, "differ only in capitals"),
        ({"\u0639\u200f": 20, "\u0639": 5}, "differ only in capitals"),  # with a mark of direction
        ({"po\u00adsi": 20, "posi": 5}, "differ only in capitals"),
        # a heart, and the same in colour
        ({"\u2764\ufe0f": 20, "\u2764": 5}, "differ only in capitals"),
        ({"True": 20, "1": 5, "False": 3}, "leading zeros, types or forms of characters"),
    ],
)
def test_refused(values, words):
    assert words in failures.failure(classes, values, "stars")


def test_too_many(monkeypatch):
    monkeypatch.setattr(sentences, "MOST_LABELS", 7)
    assert "8 different values in 16 rows" in failures.failure(
        classes, {str(i): 2 for i in range(8)}, "stars"
    )


@pytest.mark.parametrize(
    ("values", "names", "notes"),
    [
        ({"0": 3, "1": 3}, ("0", "1"), []),
        (
            {"0.0": 3, "1.0": 3, "0": 1},
            ("0", "1"),
            ["6 labels are read in another form: '0.0' as '0', '1.0' as '1'"],
        ),
        (
            {" neg": 2, "neg": 1, "pos": 3},
            ("neg", "pos"),
            ["2 labels are read in another form: ' neg' as 'neg'"],
        ),
        (
            {"e\u0301": 2, "\u00e9": 1, "x": 2},
            ("x", "\u00e9"),
            ["2 labels are read in another form: 'e\\u0301' as '\u00e9'"],
        ),
        ({"a": 2, "b|c": 3}, ("a", "b|c"), []),
        (
            {"b": 2, "b|c": 3},
            ("b", "b|c"),
            ["'b|c' (3 rows), taken as 1 classes, may mean several labels"],
        ),
        (
            {"None": 2, "b": 3},
            ("None", "b"),
            ["'None' (2 rows), taken as 1 classes, may mean no label"],
        ),
        ({"-1": 2, "1": 3}, ("-1", "1"), ["'-1' (2 rows), taken as 1 classes, may mean no label"]),
    ],
)
def test_what_is_assumed_is_said(values, names, notes):
    found, told = classes(values, "stars")
    assert found == names and len(told) == len(notes)
    assert all(line.startswith(start) for line, start in zip(told, notes, strict=True))


REJECTING = {
    "answer": ("accept", "reject"),
    "was_cancelled": (False, True),
    "status": ("submitted", "discarded"),
}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("column", REJECTING)
def test_rows_that_an_annotator_rejected(tmp_path, column, suffix):
    """As Prodigy, Label Studio and Argilla export them; the ids are the positions among all
    rows."""
    accepted, rejected = REJECTING[column]
    rows = [
        {"text": f"t{i}", "label": "neg", column: rejected if i % 2 else accepted} for i in range(6)
    ]
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        writers.parquet(path, **{name: [row[name] for row in rows] for name in rows[0]})
    else:
        lines = (
            ",".join(rows[0])
            + "\n"
            + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
        )
        write(path, lines if suffix == "csv" else writers.json_lines(*rows))
    found = read(path, OWN)
    assert firsts(found) == ["t0", "t2", "t4"] and found.ids == ["0", "2", "4"]
    assert found.notes == (
        f"{path}: 3 rows are left out, which '{column}' calls rejected or skipped",
    )
    assert len(read(path, own_task(("text",), column, tuple(map(str, REJECTING[column]))))) == 6


def test_one_label_in_a_list(tmp_path):
    """As Doccano exports it."""
    rows = [
        {"text": "a", "label": ["neg"]},
        {"text": "b", "label": []},
        {"text": "c", "label": ["pos"]},
    ]
    found = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)), OWN)
    assert firsts(found) == ["a", "c"] and found.labels.tolist() == [0, 1] and found.dropped == 1
    rows.append({"text": "d", "label": ["neg", "pos"]})
    assert "several labels of one text" in failure(
        write(tmp_path / "a.jsonl", writers.json_lines(*rows)), OWN
    )


@pytest.mark.parametrize(
    "names", ["data/{}-00000-of-00001", "{}/data-00000-of-00001", "default/{}/0000"]
)
def test_folders_as_hugging_face_has_them(tmp_path, names):
    for split, texts in {"train": ["a", "b"], "validation": ["c"], "test": ["d"]}.items():
        path = tmp_path / f"{names.format(split)}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        writers.parquet(path, text=texts, label=["neg"] * len(texts))
    train, heldout = both(tmp_path, OWN)
    assert firsts(train) == ["a", "b"] and firsts(heldout) == ["c"]


def test_a_folder_of_one_split_as_save_to_disk_writes_it(tmp_path):
    write(tmp_path / "state.json", "{}")
    writers.parquet(tmp_path / "data-00000-of-00001.parquet", text=[*"abcdefgh"], label=["neg"] * 8)
    train, heldout = both(tmp_path, OWN, 0.4)
    assert sorted(firsts(train) + firsts(heldout)) == [*"abcdefgh"] and len(heldout) > 0


def test_text_of_parquet_that_is_not_utf_8(tmp_path):
    path = writers.parquet(
        tmp_path / "a.parquet", text=pa.array([b"a", b"\xff"]).view(pa.string()), label=["neg"] * 2
    )
    assert "a.parquet, row 1: not UTF-8 (byte 0xff)" in failure(path, OWN)
    assert firsts(read(path, OWN, bad=BadRecords(1))) == ["a"]


@pytest.mark.parametrize("cell", ["1,5", "1,2,3", "1.2.3", "1_000"])
def test_text_that_is_no_number(tmp_path, cell):
    numbers = own_task(("text",), "label", numbers=True)
    path = write(tmp_path / "a.csv", f"text;label\nt;{cell}\nu;2\n")
    assert f"the label {cell!r}; expected a number" in failure(path, numbers)


@pytest.mark.parametrize("names", [("Y", "yes"), ("n", "No"), ("pos", "positive"), ("m", "Male")])
def test_two_words_for_one_label(names):
    told = failures.failure(classes, {names[0]: 20, names[1]: 5, "x": 9}, "stars")
    assert all(repr(name) in told for name in names) and "mean the same" in told
    assert classes({names[0]: 20, "x": 9}, "stars")[1] == []
