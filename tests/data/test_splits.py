"""The split that a name means, and the split that a run reads."""

import functools
import unicodedata

import pytest

from gmlp_flax.data import splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.rows import Located
from gmlp_flax.data.splits import ALL, Request
from gmlp_flax.data.text_rows import TextRow, TextRows
from gmlp_flax.io.files import File
from gmlp_flax.io.records import BadRecord, BadRecords
from tests.failures import failure

FOLDERS = {
    "train": "train Train TRAINING",
    "validation": "val VALID validation dev eval Dev",
    "test": "test Testing TEST",
    "": "trainset train2 train_a traindata my-train contest holdout trainer tests evaluation",
}


@pytest.mark.parametrize("split", FOLDERS)
def test_split_of_folder(split):
    for name in FOLDERS[split].split():
        assert splits.split_of_folder(name) == split, name


@pytest.mark.parametrize("split", ["validation", "test", "dev", "validation_matched", "dev_mm"])
def test_validation_and_test_splits_are_held_out(split):
    assert splits.is_held_out(split)


@pytest.mark.parametrize("split", ["", "train", "training", "all", "unsupervised"])
def test_other_splits_are_trained_on(split):
    assert not splits.is_held_out(split)


FILES = {
    "train": (
        "train.csv TRAIN.TXT train_2.txt en-train.part1 train-clean-100.json my-data-train.csv "
        "c4-train.00000-of-01024.json.gz train-00000-of-00002-a09b74b3ef9c3b50.parquet "
        "training_set.tsv x_train.jsonl.xz wiki.train.tokens train2017.csv 2017train.csv "
        "folder/test/train.csv \u8a13\u7df4-train.csv train"
    ),
    "validation": (
        "val.csv val_1.csv valid01.tsv Validation.csv dev-v1.1.json x.eval.tsv eval_ab.csv"
    ),
    "test": "test.csv 2021-test.csv test_2.jsonl Testing.csv testing-00001-of-00003.arrow",
    "": (
        "latest.csv contest.csv trains.csv trainer.csv trained.csv developers.csv evaluate.csv "
        "protest.csv value.csv interval.csv trainset.csv testA.csv traindata.csv heldout.csv "
        "0001.csv _.csv a.csv tr\u00e4in.csv traine\u0301.csv test\u00e9.csv .csv"
    ),
}


@pytest.mark.parametrize("split", FILES)
def test_split_of_file(split):
    for name in FILES[split].split():
        assert splits.split_of_file(name) == split, name


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("train_test.csv", "train", "test"),
        ("dev-train.csv", "validation", "train"),
        ("Test of Val.csv", "test", "validation"),
    ],
)
def test_names_of_two_splits_are_refused(name, first, second):
    message = failure(splits.split_of_file, name)
    for text in (name, first, second):
        assert repr(text) in message


@pytest.mark.parametrize("name", ["my_train_v.csv", "a-b-dev-c.txt", "data.test.old.csv"])
def test_words_of_a_split_inside_a_name_are_refused(name):
    assert repr(name) in failure(splits.split_of_file, name)


def test_the_last_word_decides_between_words_of_one_split():
    assert splits.split_of_file("valid-dev.csv") == "validation"
    assert splits.split_of_file("train-test-train.csv") == "train"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train1", True),
        ("my_Test", True),
        ("test-of-time", True),
        ("my_test_v", False),
        ("trainset", False),
        ("", False),
    ],
)
def test_names_that_name_splits(name, expected):
    assert splits.names_split(name) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.csv.gz", "a"),
        ("a.b.csv", "a.b"),
        ("c4-train.00000-of-01024.json.gz", "c4-train"),
        ("train-00000-of-00002-a09b.parquet", "train"),
        ("00000-of-00002.csv", ""),
        ("train", "train"),
        ("a.GZ", "a"),
    ],
)
def test_stems_have_no_suffixes_and_shard_numbers(name, expected):
    assert splits.stem(name) == expected


def data_files(*names: str) -> list[File]:
    return [File(f"/data/{name}", name, 1, "1") for name in names]


def grouped(*names: str) -> dict[str, list[str]]:
    """The names of the files of each split."""
    by_split = splits.by_name("/data", data_files(*names))
    groups = {}
    for split, members in by_split.items():
        groups[split] = [file.name for file in members]
    return groups


def test_names_of_splits_may_be_ignored():
    dev, train, readme = data_files("dev.csv", "train.csv", "x.md")
    by_split = splits.group_files("/data", [dev, train, readme], [dev, train])
    assert by_split == {"validation": [dev], "train": [train]}
    all_files = [dev, train, readme]
    ignored = splits.group_files("/data", all_files, [dev, train], ignore_splits=True)
    assert ignored == {"": [dev, train]}


def test_the_name_of_a_single_file_means_no_split():
    (dev,) = data_files("dev.csv")
    assert splits.group_files("/data/dev.csv", [dev], [dev]) == {"": [dev]}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.csv", "b.csv"], {"": ["a.csv", "b.csv"]}),
        (["train.csv", "x-train.csv"], {"train": ["train.csv", "x-train.csv"]}),
        (["dev.csv", "train.csv"], {"validation": ["dev.csv"], "train": ["train.csv"]}),
        (["train/a.csv", "val/a.csv"], {"train": ["train/a.csv"], "validation": ["val/a.csv"]}),
        (["x/Train/a.csv", "train/b.csv"], {"train": ["x/Train/a.csv", "train/b.csv"]}),
        (["test/a/train/b.csv"], {"test": ["test/a/train/b.csv"]}),
        (["train/dev.csv", "test/a.csv"], {"train": ["train/dev.csv"], "test": ["test/a.csv"]}),
        (["data/train-0.csv"], {"train": ["data/train-0.csv"]}),
        (["x_TRAIN.csv", "train-1.csv"], {"train": ["x_TRAIN.csv", "train-1.csv"]}),
        (["test/train.csv", "test/val.csv"], {"test": ["test/train.csv", "test/val.csv"]}),
        (["train.csv", "state.json", "cache-1.arrow"], {"train": ["train.csv"]}),
        ([], {}),
        (
            ["dataset_dict.json", "dev/a.arrow", "dev/state.json", "odd/a.arrow"],
            {"validation": ["dev/a.arrow"], "odd": ["odd/a.arrow"]},
        ),
    ],
)
def test_files_are_grouped_by_split(names, expected):
    assert grouped(*names) == expected


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["train.csv", "notes.csv"], ["'train.csv'", "'notes.csv'"]),
        (["train/a.csv", "b.csv"], ["'train/a.csv'", "'b.csv'"]),
        (["dataset_dict.json", "train/a.arrow", "b.arrow"], ["'train/a.arrow'", "'b.arrow'"]),
        (["train.csv", "train_test.csv"], ["'train_test.csv'"]),
        (["train.csv", "my_test_v.csv"], ["'my_test_v.csv'"]),
        (["train.csv", "dev.csv", "val.csv"], ["'dev.csv'", "'val.csv'", "'validation'"]),
        (["train/a.csv", "val/a.csv", "valid/a.csv"], ["'val/a.csv'", "'valid/a.csv'"]),
        (["train-1.csv", "x-training-2.csv"], ["'train-1.csv'", "'x-training-2.csv'"]),
        (["dataset_dict.json", "dev/a.arrow", "val/a.arrow"], ["'dev/a.arrow'", "'val/a.arrow'"]),
    ],
)
def test_ambiguous_and_partial_names_of_splits_are_refused(names, keys):
    message = failure(grouped, *names)
    for key in keys:
        assert key in message


def test_all_names_or_none_must_mean_splits():
    splits.require_all_or_none("x", {})
    splits.require_all_or_none("x", {"a": "", "b": ""})
    splits.require_all_or_none("x", {"a": "train", "b": "test"})
    message = failure(splits.require_all_or_none, "x", {"a": "", "b": "test"})
    for key in ("'x'", "'a'", "'b'", f"split={ALL}"):
        assert key in message


def by_cells(cells: list, bad: BadRecords | None = None, columns=("split", "tag")) -> dict:
    """The positions of the rows of each split. A cell "bad" stands for a bad record."""
    located = []
    for number, cell in enumerate(cells):
        row = BadRecord("no row") if cell == "bad" else cell
        located.append(Located(f"a.csv, line {number}", row))
    bad_rows = bad or BadRecords()
    groups = splits.by_column("a.csv", located, columns, bad_rows)
    positions = {}
    for split, numbered in groups.items():
        positions[split] = [position for position, _ in numbered]
        for position, entry in numbered:
            assert entry is located[position]
    return positions


def test_rows_are_grouped_by_the_cell_with_their_split():
    cells = ["Train", " dev ", "train", "TEST", "val"]
    rows = [{"split": cell} for cell in cells]
    expected = {"train": [0, 2], "validation": [1, 4], "test": [3]}
    assert by_cells(rows) == expected
    tagged = [{"tag": cell} for cell in cells]
    assert by_cells(tagged) == expected
    split_rows = [{"tag": "x", "split": cell} for cell in cells]
    assert by_cells(split_rows) == expected
    assert by_cells(rows, columns=()) == {"": [0, 1, 2, 3, 4]}


def test_rows_without_a_split_are_one_group():
    rows = [{"a": 1}, {"split": ""}, {"split": None}, {"split": " "}]
    assert by_cells(rows) == {"": [0, 1, 2, 3]}
    assert by_cells([]) == {"": []}


@pytest.mark.parametrize("cell", ["trainset", "fold 1", 0, True, ["train"], "heldout"])
def test_unknown_splits_in_cells_are_refused(cell):
    rows = [{"split": "train"}, {"split": cell}]
    message = failure(by_cells, rows)
    for key in ("a.csv, line 1", "'split'", repr(cell), "training", f"split={ALL}"):
        assert key in message


def test_splits_in_only_some_rows_are_refused():
    rows = [{"split": "train"}, {"split": "train"}, {"text": "a"}]
    message = failure(by_cells, rows)
    assert "a.csv, line 0" in message
    assert "a.csv, line 2" in message


def test_bad_rows_keep_the_positions_of_others():
    bad = BadRecords(2)
    train = {"split": "train"}
    test = {"split": "test"}
    cells = ["bad", train, "bad", test, train]
    assert by_cells(cells, bad) == {"train": [1, 4], "test": [3]}
    assert bad.first == ["a.csv, line 0: no row", "a.csv, line 2: no row"]
    assert "line 2" in failure(by_cells, cells, BadRecords(1))


SIZE = 40


def read_split(name: str) -> Dataset:
    rows = []
    for number in range(SIZE):
        row = TextRow((f"{name} {number}",), str(number))
        rows.append(row)
    return Dataset("/data", "a form", TextRows(rows), split=name)


def splits_of(*names: str) -> Splits:
    """A data set with these splits, each of SIZE examples."""
    readers = {name: functools.partial(read_split, name) for name in names}
    return Splits("/data", "a form", readers)


def keys_of(dataset: Dataset) -> set[str]:
    return {row.texts[0] for row in dataset.examples.rows}


THREE = ("train", "validation", "test")


def choose_both(names, options) -> tuple[Dataset, Dataset]:
    """What a run trains on and what it holds out, by default a share of 0.2."""
    chosen = []
    for role in (TRAIN, HELDOUT):
        request = Request(role, **{"heldout_share": 0.2, **options})
        found = splits_of(*names)
        chosen.append(splits.choose(found, request))
    train, heldout = chosen
    return train, heldout


@pytest.mark.parametrize(
    ("options", "train_split", "heldout_split"),
    [
        ({}, "train", "validation"),
        ({"heldout_split": "test"}, "train", "test"),
        ({"heldout_split": "DEV"}, "train", "validation"),
        ({"split": "test"}, "test", "validation"),
        ({"split": "Training"}, "train", "validation"),
    ],
)
def test_existing_splits_are_read_whole(options, train_split, heldout_split):
    train, heldout = choose_both(THREE, options)
    assert train.split == train_split
    assert heldout.split == heldout_split
    assert len(train) == SIZE
    assert len(heldout) == SIZE
    assert heldout.notes == ()
    assert not keys_of(train) & keys_of(heldout)


def test_parts_of_a_split_have_other_names_too():
    names = ("train", "validation_matched")
    train, heldout = choose_both(names, {"heldout_split": "dev_matched"})
    assert train.split == "train"
    assert len(train) == SIZE
    assert not keys_of(train) & keys_of(heldout)


@pytest.mark.parametrize(
    ("names", "options", "split", "key"),
    [
        # Without a split to hold out, a share of the training split is held out.
        (("train",), {}, "train", "config.data.heldout_share"),
        (("train", "test"), {}, "train", "config.data.heldout_share"),
        (("",), {}, "", "config.data.heldout_share"),
        (("",), {"split": ALL}, "", "config.data.heldout_share"),
        (THREE, {"split": "validation"}, "validation", "config.data.heldout_share"),
        # A search holds out a part of the training split.
        (THREE, {"heldout_share": -0.2}, "train", "config.data.search"),
    ],
)
def test_a_share_of_the_training_split_is_held_out(names, options, split, key):
    train, heldout = choose_both(names, options)
    assert key in heldout.notes[-1]
    for part in (train, heldout):
        assert part.split == split
        assert 0 < len(part) < SIZE
    assert not keys_of(train) & keys_of(heldout)


@pytest.mark.parametrize(
    ("role", "names", "options", "expected"),
    [
        (TRAIN, THREE, {}, "train"),
        (TRAIN, ("",), {}, ""),
        (TRAIN, ("",), {"split": ALL}, ""),
        (TRAIN, THREE, {"split": "test"}, "test"),
        # With a path of its own, heldout_split does not name a split of this path.
        (TRAIN, ("train",), {"heldout_split": "test"}, "train"),
        (TRAIN, THREE, {"heldout_split": "train"}, "train"),
        # A split may be called by a word that usually means another.
        (TRAIN, ("train", "dev"), {"split": "dev"}, "dev"),
        (HELDOUT, THREE, {}, "validation"),
        (HELDOUT, THREE, {"split": ALL}, "validation"),
        (HELDOUT, THREE, {"heldout_split": "train"}, "train"),
        (HELDOUT, ("",), {}, ""),
        (HELDOUT, ("odd",), {"heldout_split": "odd"}, "odd"),
    ],
)
def test_paths_of_one_role_are_read_whole(role, names, options, expected):
    request = Request(role, **options)
    found = splits_of(*names)
    chosen = splits.choose(found, request)
    assert chosen.split == expected
    assert len(chosen) == SIZE


def test_tasks_have_their_own_order_of_held_out_splits():
    request = Request(HELDOUT, heldout_share=0.2)
    without_validation = splits_of("train", "test")
    chosen = splits.choose(without_validation, request, ("validation", "test"))
    assert chosen.split == "test"
    chosen = splits.choose(splits_of(*THREE), request, ("test", "validation"))
    assert chosen.split == "test"


TEST_FOR_BOTH = {"split": "test", "heldout_split": "test", "heldout_share": 0.1}


@pytest.mark.parametrize(
    ("role", "names", "options", "keys"),
    [
        (TRAIN, ("test", "validation"), {}, ["'train'", "'test', 'validation'", "split"]),
        (TRAIN, THREE, {"split": "odd"}, ["'odd'", "'train', 'validation', 'test'"]),
        (TRAIN, ("",), {"split": "train"}, ["'train'", "names no splits"]),
        (TRAIN, THREE, {"split": ALL}, [ALL, "'train', 'validation', 'test'"]),
        (TRAIN, ("a", "b"), {"split": ALL}, [ALL, "'a', 'b'"]),
        (HELDOUT, ("train", "test"), {}, ["'validation'", "'train', 'test'", "heldout_split"]),
        (HELDOUT, THREE, {"heldout_split": "x"}, ["'x'"]),
        (HELDOUT, ("",), {"heldout_split": "test"}, ["'test'", "names no splits"]),
        (TRAIN, THREE, TEST_FOR_BOTH, ["'test'", "both trained on and held out"]),
        (HELDOUT, THREE, {"heldout_split": "train", "heldout_share": 0.1}, ["'train'"]),
        (HELDOUT, ("train",), {"heldout_share": 1e-9}, ["'heldout'", "1e-09"]),
    ],
)
def test_missing_splits_are_refused(role, names, options, keys):
    request = Request(role, **options)
    found = splits_of(*names)
    message = failure(splits.choose, found, request)
    for key in ("'/data'", *keys):
        assert key in message


def test_accented_letters_make_another_word():
    """ "tést" is not "test", whether é is one character or two."""
    composed = unicodedata.normalize("NFC", "tést.csv")
    decomposed = unicodedata.normalize("NFD", "tést.csv")
    assert splits.split_of_file(composed) == ""
    assert splits.split_of_file(decomposed) == ""
