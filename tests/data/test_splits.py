"""Which examples are held out, in every kind of data, and which splits each side reads."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning import squad
from gmlp_flax.data.finetuning.glue import GLUE_TASKS
from gmlp_flax.data.finetuning.sentences import open_sentences
from gmlp_flax.data.images.folders import ImageFolder
from gmlp_flax.data.images.sources import open_side, split_images
from gmlp_flax.data.splits import Side
from gmlp_flax.data.text.corpora import Selection
from tests.data.finetuning import squad_files
from tests.data.images import image_files
from tests.failures import failure

SHARE = 0.2

# The next five tests hold each kind of data's results before the rule had one owner: a change of
# the hash, of its input or of the threshold would move examples of existing runs from one side to
# the other.


def test_documents_that_are_held_out():
    documents = [*(f"document {i}" for i in range(40)), "\ud83d", "", "ä"]
    heldout = list(Selection(SHARE, "heldout").pick(iter(documents), whole=True))
    assert heldout == [documents[i] for i in (3, 7, 13, 17, 23, 33, 37, 41)]


def test_images_that_are_held_out(tmp_path):
    files = {
        f"{name}/{i}.png": b""
        for name, count in (("a", 30), ("b", 2), ("c", 3))
        for i in range(count)
    }
    folder = image_files.make_folder(tmp_path, files)
    with open(os.fsencode(folder / "a") + b"/\xff\xe9.png", "wb"):  # a name that is not UTF-8
        source = ImageFolder(str(folder)).of_split()
    train, heldout = split_images(source, SHARE)
    expected = [*(f"a/{i}.png" for i in (10, 11, 18, 19, 26, 27, 4, 5)), "b/1.png", "c/2.png"]
    assert [source.names[i] for i in heldout.indices] == expected
    assert len(train) == 26 and sorted([*train.indices, *heldout.indices]) == list(range(36))


def test_records_of_a_tfds_split_that_are_held_out(tmp_path):
    path = str(image_files.tfds_folder(tmp_path / "1.0.0", {"train": [20, 20]}, "tfrecord"))
    assert open_side(path, Side("heldout", heldout_share=SHARE)).indices.tolist() == [
        2,
        6,
        23,
        27,
        33,
        37,
    ]


def test_sentences_that_are_held_out(tmp_path):
    rows = "".join(f"{i}\tpremise {i // 2}\th{i}\tentailment\n" for i in range(40))
    (tmp_path / "rte.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + rows)
    found = open_sentences(
        str(tmp_path / "rte.tsv"), GLUE_TASKS["rte"], Side("heldout", heldout_share=SHARE)
    )
    assert found.ids == ["6", "7", "14", "15", "24", "25", "32", "33"]


def test_articles_that_are_held_out(tmp_path):
    articles = [squad_files.colours(i) for i in range(40)]
    for i, article in enumerate(articles):  # a passage under two titles would count as the first
        article["paragraphs"][0]["context"] += f" This is village {i}."
    path = squad_files.write(tmp_path / "a.json", *articles)
    titles = {
        question.title
        for question in squad.read_side(path, Side("heldout", heldout_share=SHARE), "v1.1")
    }
    assert titles == {f"article {i}" for i in (0, 4, 8, 20, 24, 28, 30, 34, 38)}


def test_the_share_is_the_share():
    assert 150 < sum(splits.is_on("heldout", f"document {i}", 0.1) for i in range(2000)) < 250
    assert splits.is_on("heldout", "\ud83d", 1) and not splits.is_on("heldout", "\ud83d", 0)
    assert splits.is_on("heldout", "ä", 0.5) == splits.is_on("heldout", "ä".encode(), 0.5)


def test_what_a_search_holds_out_is_neither_reported_nor_trained_on():
    keys = [f"document {i}" for i in range(2000)]
    found = {
        share: {
            side: {key for key in keys if splits.is_on(side, key, share)} for side in splits.SIDES
        }
        for share in (0.1, -0.1)
    }
    reported, searched = found[0.1]["heldout"], found[-0.1]["heldout"]
    assert 150 < len(searched) < 250 and not searched & reported
    assert found[-0.1]["train"] == set(keys) - reported - searched
    assert np.flatnonzero(splits.heldout_members(keys, -0.1)).tolist() == [
        keys.index(k) for k in keys if k in searched
    ]
    assert Side("heldout", "", "validation", -0.1).choose("x", ("train",), ("validation",)) == (
        ("train",),
        -0.1,
    )


@given(st.lists(st.text(), min_size=2), st.floats(0.01, 0.99))
def test_members_are_held_out_by_key_unless_a_side_is_empty(keys, share):
    heldout = splits.heldout_members(keys, share)
    expected = np.array([splits.is_on("heldout", key, share) for key in keys])
    if 0 < expected.sum() < len(keys):
        assert heldout.tolist() == expected.tolist()
    else:
        assert heldout.sum() == (1 if not expected.any() else len(keys) - 1)


@pytest.mark.parametrize(
    ("train", "heldout", "share", "explicit", "expected"),
    [
        (("train",), ("validation",), 0.1, False, [(("train",), 0.0), (("validation",), 0.0)]),
        (("train",), ("test",), 0.0, True, [(("train",), 0.0), (("test",), 0.0)]),
        (("train",), (), 0.1, False, [(("train",), 0.1)] * 2),
        (("train",), ("train",), 0.1, False, [(("train",), 0.1)] * 2),
        (("train",), ("train",), 0.0, True, [(("train",), 0.0)] * 2),
        ((splits.ALL_SPLITS,), ("validation",), 0.1, False, [((splits.ALL_SPLITS,), 0.1)] * 2),
        ((), ("validation",), 0.1, False, [((), 0.0), (("validation",), 0.0)]),
    ],
)
def test_choose(train, heldout, share, explicit, expected):
    found = [
        Side(side, "", "given" * explicit, share).choose("path", train, heldout)
        for side in splits.SIDES
    ]
    assert found == expected


def test_a_split_on_both_sides():
    for train in (("test",), (splits.ALL_SPLITS,)):
        message = failure(
            Side("train", "", "test", 0.1).choose, "path", train, ("test",), ("train", "test")
        )
        assert "'test' of 'path'" in message and "(it has 'train', 'test')" in message


SPLITS_OF_NAMES = {
    "train": "train train_2 TRAIN en-train-part1 partial-train trainA trainB train2017 Training trainset Training_Set "
    "x_train wiki.train.tokens c4-train.00000-of-01024 train-00000-of-00002-a09b74b3ef9c3b50 train-clean-100 trn "
    "traindata corpus_train_v2 \u8a13\u7df4-train",
    "validation": "val val_1 valid01 validation_small Validation dev dev-clean devset dev_matched eval held-out "
    "held_out held-outset hold.out evaluation LOC_val_solution ILSVRC2012_val_00000001 01val wiki.valid devel VAL",
    "test": "test test1 Testing test_2 corpus_test_v2 testset testA 2021-test tst2013 tests unit-test "
    "TestData testData devtest",
    "": "latest contest trains trainer trained developers evaluate evaluator attest testament protest valley value "
    "interval validate device devil trainee tr\xe4in traine\u0301 test\xe9 asset dataset set data heldoutside holdouts "
    "newstest2014 a 0001 _ restraint",
}


@pytest.mark.parametrize("split", SPLITS_OF_NAMES)
def test_the_split_in_a_name(split):
    names = SPLITS_OF_NAMES[split].split(" ")
    assert {name: splits.split_of(name) for name in names} == dict.fromkeys(names, split)


@pytest.mark.parametrize(
    "name", ["train_test", "dev-train", "trainTest", "trainval", "test-dev2017", "Train and Val"]
)
def test_a_name_of_two_splits_is_ambiguous(name):
    first, second = splits.split_words(name)
    message = failure(splits.split_of, name)
    assert all(repr(text) in message for text in (name, first, second))
    assert splits.split_of("valid-dev") == "validation", "two words for one split are one reading"


@pytest.mark.parametrize(
    ("column", "values", "refused"),
    [
        ("set", ["train", "train", "test"], True),
        ("Dataset_type", ["TRAIN", "VAL_1", "Test set"], True),
        ("Usage", ["Training", "PublicTest"], True),  # FER-2013
        ("is_valid", [True, False], True),  # fastai
        ("isTest", [0, 1], True),
        ("set", ["train", "train"], False),
        ("set", ["train", "test", "spare"], False),
        ("island", [True, False], False),
        ("comment", ["train", "test", *map(str, range(9))], False),
    ],
)
def test_a_column_that_names_splits(column, values, refused):
    columns = {}
    for value in values:
        splits.add_values(columns, {column: value, "text": f"a {value}", "number": 3})
    columns.pop("text")
    if refused:
        assert f"the column {column!r} seems to name splits" in failure(
            splits.check_columns, columns, "a.csv"
        )
    else:
        splits.check_columns(columns, "a.csv")


@pytest.mark.parametrize(
    ("column", "values", "noted"),
    [
        ("fold", range(5), True),
        ("Kfold", range(20), True),
        ("cv_fold", ["a", "b"], True),
        ("partition", range(3), True),  # CelebA
        ("SETID", [1, 2, 3], True),  # Oxford's flowers
        ("test", [0, 1], True),
        ("fold", [0], False),
        ("set", range(20), False),
        ("manifold", range(5), False),
    ],
)
def test_a_column_that_numbers_folds(column, values, noted):
    columns = {}
    for value in values:
        splits.add_values(columns, {column: value})
    notes = splits.check_columns(columns, "a.csv")
    assert len(notes) == noted and all(
        f"a.csv: the column {column!r} may number" in note for note in notes
    )
    assert splits.may_name_splits(column) == (column != "manifold")


def test_the_word_of_a_split_is_kept():
    assert splits.split_words("Corpus_VALID_v2") == {"validation": "valid"}
    assert splits.split_words("train-valset") == {"train": "train", "validation": "val"}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *(
            ("Trainingsdaten", "train"),
            ("训练集", "train"),
            ("entraînement_2", "train"),
            ("学習データ", None),
        ),
        *(
            ("Validierung", "validation"),
            ("验证集", "validation"),
            ("de-validierungsdaten", "validation"),
        ),
        *(
            ("Testdaten", "test"),
            ("测试数据集", "test"),
            ("prueba", "test"),
            ("テスト", "test"),
            ("Testament", None),
        ),
    ],
)
def test_words_of_splits_in_several_languages(name, split):
    assert [*splits.split_words(name)] == [split] * bool(split)
