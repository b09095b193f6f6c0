"""Which names mean which split, and which split a run reads."""

import unicodedata

import pytest

from gmlp_flax.data import splits
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
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
def test_the_split_of_a_folder(split):
    for name in FOLDERS[split].split():
        assert splits.split_of_folder(name) == split, name


@pytest.mark.parametrize("split", ["validation", "test", "dev", "validation_matched", "dev_mm"])
def test_a_split_to_hold_out(split):
    assert splits.is_held_out(split)


@pytest.mark.parametrize("split", ["", "train", "training", "all", "unsupervised"])
def test_a_split_to_train_on(split):
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
def test_the_split_of_a_file(split):
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
def test_a_name_of_two_splits(name, first, second):
    message = failure(splits.split_of_file, name)
    for text in (name, first, second):
        assert repr(text) in message


@pytest.mark.parametrize("name", ["my_train_v.csv", "a-b-dev-c.txt", "data.test.old.csv"])
def test_a_word_of_a_split_amidst_a_name(name):
    assert repr(name) in failure(splits.split_of_file, name)


def test_two_words_for_one_split():
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
def test_stems(name, expected):
    assert splits.stem(name) == expected


def grouped(*names: str) -> dict[str, list[str]]:
    found = [File(f"/data/{name}", name, 1, "1") for name in names]
    groups = splits.by_name("/data", found)
    return {split: [file.name for file in members] for split, members in groups.items()}


def test_files_that_are_one_data_set_whatever_their_names():
    found = [File(f"/data/{name}", name, 1, "1") for name in ("dev.csv", "train.csv", "x.md")]
    tables = found[:2]
    by_split = splits.group_files("/data", found, tables)
    assert by_split == {"validation": tables[:1], "train": tables[1:]}
    assert splits.group_files("/data", found, tables, ignore_splits=True) == {"": tables}
    got = splits.group_files("/data/dev.csv", found[:1], found[:1])
    assert got == {"": found[:1]}


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
def test_files_by_the_names_of_their_splits(names, expected):
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
def test_folders_of_which_only_some_names_mean_splits(names, keys):
    message = failure(grouped, *names)
    for key in keys:
        assert key in message


def test_all_names_or_none():
    splits.require_all_or_none("x", {})
    splits.require_all_or_none("x", {"a": "", "b": ""})
    splits.require_all_or_none("x", {"a": "train", "b": "test"})
    message = failure(splits.require_all_or_none, "x", {"a": "", "b": "test"})
    for key in ("'x'", "'a'", "'b'", f"split={ALL}"):
        assert key in message


def by_cells(cells: list, bad: BadRecords | None = None, columns=("split", "tag")) -> dict:
    """The positions of the rows of each split; a bad row for "bad"."""
    located = []
    for number, cell in enumerate(cells):
        row = BadRecord("no row") if cell == "bad" else cell
        located.append(Located(f"a.csv, line {number}", row))
    groups = splits.by_column("a.csv", located, columns, bad or BadRecords())
    positions = {}
    for split, numbered in groups.items():
        positions[split] = [position for position, _ in numbered]
        for position, entry in numbered:
            assert entry is located[position]
    return positions


def test_rows_that_name_their_split():
    cells = ["Train", " dev ", "train", "TEST", "val"]
    rows = [{"split": cell} for cell in cells]
    expected = {"train": [0, 2], "validation": [1, 4], "test": [3]}
    assert by_cells(rows) == expected
    assert by_cells([{"tag": cell} for cell in cells]) == expected
    assert by_cells([{"tag": "x", "split": cell} for cell in cells]) == expected
    assert by_cells(rows, columns=()) == {"": [0, 1, 2, 3, 4]}


def test_rows_that_name_no_split():
    assert by_cells([{"a": 1}, {"split": ""}, {"split": None}, {"split": " "}]) == {
        "": [0, 1, 2, 3]
    }
    assert by_cells([]) == {"": []}


@pytest.mark.parametrize("cell", ["trainset", "fold 1", 0, True, ["train"], "heldout"])
def test_a_cell_that_is_no_word_of_a_split(cell):
    message = failure(by_cells, [{"split": "train"}, {"split": cell}])
    for key in ("a.csv, line 1", "'split'", repr(cell), "training", f"split={ALL}"):
        assert key in message


def test_rows_of_which_some_name_no_split():
    message = failure(by_cells, [{"split": "train"}, {"split": "train"}, {"text": "a"}])
    assert "a.csv, line 0" in message
    assert "a.csv, line 2" in message


def test_bad_rows_keep_the_positions_of_the_others():
    bad = BadRecords(2)
    cells = ["bad", {"split": "train"}, "bad", {"split": "test"}, {"split": "train"}]
    assert by_cells(cells, bad) == {"train": [1, 4], "test": [3]}
    assert bad.first == ["a.csv, line 0: no row", "a.csv, line 2: no row"]
    assert "line 2" in failure(by_cells, cells, BadRecords(1))


SIZE = 40


def read_split(name: str) -> Dataset:
    rows = [TextRow((f"{name} {i}",), str(i)) for i in range(SIZE)]
    return Dataset("/data", "a form", TextRows(rows), split=name)


def made(*names: str) -> Splits:
    """A data set with these splits, each of SIZE examples."""
    return Splits("/data", "a form", {name: lambda name=name: read_split(name) for name in names})


THREE = ("train", "validation", "test")
WHOLE = SIZE


@pytest.mark.parametrize(
    ("names", "options", "train", "heldout"),
    [
        # Splits that are there, by their usual names.
        (THREE, {}, ("train", WHOLE), ("validation", WHOLE)),
        (THREE, {"heldout_split": "test"}, ("train", WHOLE), ("test", WHOLE)),
        (THREE, {"heldout_split": "DEV"}, ("train", WHOLE), ("validation", WHOLE)),
        (THREE, {"split": "test"}, ("test", WHOLE), ("validation", WHOLE)),
        (THREE, {"split": "Training"}, ("train", WHOLE), ("validation", WHOLE)),
        (("train", "validation_matched"), {"heldout_split": "dev_matched"}, ("train", WHOLE), None),
        # A share of the only split there is for it.
        (("train",), {}, ("train", "part"), ("train", "part")),
        (("train", "test"), {}, ("train", "part"), ("train", "part")),
        (("",), {}, ("", "part"), ("", "part")),
        (("",), {"split": ALL}, ("", "part"), ("", "part")),
        (THREE, {"split": "validation"}, ("validation", "part"), ("validation", "part")),
        # A search holds out a part of what is trained on.
        (THREE, {"heldout_share": -0.2}, ("train", "part"), ("train", "part")),
    ],
)
def test_splits_that_share_a_path(names, options, train, heldout):
    chosen = {}
    for role in ROLES:
        request = Request(role, **({"heldout_share": 0.2} | options))
        chosen[role] = splits.choose(made(*names), request)
    for role, expected in ((TRAIN, train), (HELDOUT, heldout)):
        if expected is None:
            continue
        split, size = expected
        assert chosen[role].split == split
        if size == "part":
            assert 0 < len(chosen[role]) < SIZE
        else:
            assert len(chosen[role]) == size
    notes = chosen[HELDOUT].notes
    if options.get("heldout_share", 0.2) < 0:
        assert "config.data.search" in notes[-1]
    elif heldout and heldout[1] == "part":
        assert "config.data.heldout_share" in notes[-1]
    else:
        assert notes == ()
    keys = {row.texts[0] for row in chosen[TRAIN].examples.rows}
    assert not keys & {row.texts[0] for row in chosen[HELDOUT].examples.rows}


@pytest.mark.parametrize(
    ("role", "names", "options", "expected"),
    [
        (TRAIN, THREE, {}, "train"),
        (TRAIN, ("",), {}, ""),
        (TRAIN, ("",), {"split": ALL}, ""),
        (TRAIN, THREE, {"split": "test"}, "test"),
        # What is held out of another path is no split of this one.
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
def test_a_path_of_one_role(role, names, options, expected):
    chosen = splits.choose(made(*names), Request(role, **options))
    assert chosen.split == expected
    assert len(chosen) == SIZE


def test_the_usual_names_of_held_out_splits():
    request = Request(HELDOUT, heldout_share=0.2)
    chosen = splits.choose(made("train", "test"), request, ("validation", "test"))
    assert chosen.split == "test"
    chosen = splits.choose(made(*THREE), request, ("test", "validation"))
    assert chosen.split == "test"


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
        (
            TRAIN,
            THREE,
            {"split": "test", "heldout_split": "test", "heldout_share": 0.1},
            ["'test'", "both trained on and held out"],
        ),
        (HELDOUT, THREE, {"heldout_split": "train", "heldout_share": 0.1}, ["'train'"]),
        (HELDOUT, ("train",), {"heldout_share": 1e-9}, ["'heldout'", "1e-09"]),
    ],
)
def test_splits_that_are_not_there(role, names, options, keys):
    message = failure(splits.choose, made(*names), Request(role, **options))
    for key in ("'/data'", *keys):
        assert key in message


def test_names_in_another_form_of_unicode():
    """A combining mark is no letter, so what is before it is a word."""
    name = unicodedata.normalize("NFD", "tést.csv")
    assert splits.split_of_file(name) == splits.split_of_file("tést.csv") == ""
